package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// host is an address of the machine, at which a driver publishes ports.
const host = "192.0.2.1"

// answersPort waits until a datagram to the task's last port is answered, sent every millisecond from the start on.
func answersPort(config *drivers.TaskConfig, _ *drivers.DriverNetwork) error {
	ports := *config.Resources.Ports
	if len(ports) == 0 {
		return errors.New("the task publishes no port")
	}
	address := &net.UDPAddr{IP: net.ParseIP(host), Port: ports[len(ports)-1].Value}
	answered, every := make(chan struct{}, 1), time.NewTicker(time.Millisecond)
	defer every.Stop()
	late := time.After(patience)
	for {
		go sent(address, answered)
		select {
		case <-answered:
			return nil
		case <-late:
			return fmt.Errorf("%v does not answer within %v", address, patience)
		case <-every.C:
		}
	}
}

// sent is one datagram, from a port of its own: connection tracking keeps the way of a flow that began too early.
func sent(address *net.UDPAddr, answered chan<- struct{}) {
	connection, err := net.DialUDP("udp4", nil, address)
	if err != nil {
		return
	}
	defer connection.Close()
	_, _ = connection.Write([]byte("echo"))
	_ = connection.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := connection.Read(make([]byte, 64)); err != nil {
		return
	}
	select {
	case answered <- struct{}{}:
	default:
	}
}
