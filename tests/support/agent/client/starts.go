package main

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// firstPort of the host's is given to the first task of a process that wants one; the next ones follow.
const firstPort = 20000

var ports atomic.Int64

const patience = 10 * time.Second // for a stop, and for a guest to answer

// fresh is another start of a task, with ports of its own.
func (p *driverPlugin) fresh(d *description) (*drivers.TaskConfig, error) {
	own := *d
	own.Ports = nil
	for _, port := range d.Ports {
		port.Value = firstPort + int(ports.Add(1)) - 1
		own.Ports = append(own.Ports, port)
	}
	return p.taskConfig(&own)
}

// several starts a task several times at the same time; as atOnce.
func (p *driverPlugin) several(d *description, count int, until end) ([]*drivers.TaskHandle, timings, error) {
	configs := make([]*drivers.TaskConfig, count)
	for i := range configs {
		var err error
		if configs[i], err = p.fresh(d); err != nil {
			return nil, timings{}, err
		}
	}
	return p.atOnce(configs, until)
}

// atOnce starts tasks at the same time and returns those that started, with how long that took.
func (p *driverPlugin) atOnce(configs []*drivers.TaskConfig, until end) ([]*drivers.TaskHandle, timings, error) {
	handles := make([]*drivers.TaskHandle, len(configs))
	took, err := each(len(configs), len(configs), func(i int) error {
		handle, network, err := p.StartTask(configs[i])
		if err != nil {
			return err
		}
		handles[i] = handle
		return until(configs[i], network)
	})
	var started []*drivers.TaskHandle
	for _, handle := range handles {
		if handle != nil {
			started = append(started, handle)
		}
	}
	return started, took, err
}

// end waits for what ends the time of a start, after its reply.
type end func(*drivers.TaskConfig, *drivers.DriverNetwork) error

var ends = map[string]end{"": nothingMore, "ping": answersPing}

// nothingMore is asked of a task that has started.
func nothingMore(*drivers.TaskConfig, *drivers.DriverNetwork) error {
	return nil
}

// removed stops and destroys tasks, so many at a time.
func (p *driverPlugin) removed(handles []*drivers.TaskHandle, concurrency int) error {
	_, err := p.removals(handles, concurrency)
	return err
}

// removals times the same.
func (p *driverPlugin) removals(handles []*drivers.TaskHandle, concurrency int) (timings, error) {
	return each(len(handles), concurrency, func(i int) error {
		id := handles[i].Config.ID
		return errors.Join(p.StopTask(id, patience, ""), p.DestroyTask(id, true))
	})
}

// timings are those of many operations: one for each, and of all together.
type timings struct {
	Milliseconds []float64 `json:"milliseconds"`
	Seconds      float64   `json:"seconds"`
	Pid          int       `json:"pid"` // of the plugin
}

// each calls work with 0 to count-1, in so many goroutines.
func each(count, concurrency int, work func(int) error) (timings, error) {
	took, problems, began := make([]float64, count), make([]error, count), time.Now()
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(count, concurrency) {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				began := time.Now()
				problems[i] = work(i)
				took[i] = float64(time.Since(began).Microseconds()) / 1000
			}
		}()
	}
	all.Wait()
	return timings{Milliseconds: took, Seconds: time.Since(began).Seconds()}, errors.Join(problems...)
}
