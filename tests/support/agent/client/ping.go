package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// echo is an ICMP echo request: type 8, code 0, checksum, and nothing else but zeros.
var echo = []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}

const echoReply = 0

// answersPing waits until the guest answers a ping, asked every millisecond from the start on.
func answersPing(_ *drivers.TaskConfig, network *drivers.DriverNetwork) error {
	if network == nil {
		return errors.New("the task has no address to be pinged at")
	}
	connection, err := net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: net.ParseIP(network.IP)})
	if err != nil {
		return err
	}
	defer connection.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, _ = connection.Write(echo) // refused until the neighbour is known
		if replied(connection) {
			return nil
		}
	}
	return fmt.Errorf("%s does not answer within %v", network.IP, patience)
}

func replied(connection *net.IPConn) bool {
	answer := make([]byte, 1500)
	_ = connection.SetReadDeadline(time.Now().Add(time.Millisecond))
	length, _, err := connection.ReadFrom(answer) // without the IP header, unlike Read
	return err == nil && length > 0 && answer[0] == echoReply
}
