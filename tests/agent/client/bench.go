package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// timings is what a benchmark found: one figure for each operation, and all of them together.
type timings struct {
	What         string    `json:"what"`
	Count        int       `json:"count"`
	Concurrency  int       `json:"concurrency"`
	Background   int       `json:"background"`
	Milliseconds []float64 `json:"milliseconds"`
	Seconds      float64   `json:"seconds"`
}

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

// several starts tasks at the same time and returns those that started, with how long each took.
func (p *driverPlugin) several(d *description, count int, until func(*drivers.DriverNetwork) error) ([]*drivers.TaskHandle, []float64, error) {
	handles, took, problems := make([]*drivers.TaskHandle, count), make([]float64, count), make([]error, count)
	configs := make([]*drivers.TaskConfig, count)
	for i := range configs {
		var err error
		if configs[i], err = p.fresh(d); err != nil {
			return nil, nil, err
		}
	}
	each(count, count, func(i int) {
		began := time.Now()
		handle, network, err := p.StartTask(configs[i])
		if err == nil {
			handles[i], err = handle, until(network)
		}
		took[i], problems[i] = milliseconds(began), err
	})
	var started []*drivers.TaskHandle
	for _, handle := range handles {
		if handle != nil {
			started = append(started, handle)
		}
	}
	return started, took, errors.Join(problems...)
}

// inBatches starts count tasks, so many at a time.
func (p *driverPlugin) inBatches(d *description, count, size int) ([]*drivers.TaskHandle, error) {
	var all []*drivers.TaskHandle
	for len(all) < count {
		handles, _, err := p.several(d, min(size, count-len(all)), atOnce)
		all = append(all, handles...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// removed stops and destroys tasks, so many at a time.
func (p *driverPlugin) removed(handles []*drivers.TaskHandle, concurrency int) error {
	problems := make([]error, len(handles))
	each(len(handles), concurrency, func(i int) {
		id := handles[i].Config.ID
		problems[i] = errors.Join(p.StopTask(id, patience, ""), p.DestroyTask(id, true))
	})
	return errors.Join(problems...)
}

// each calls work with 0 to count-1, in so many goroutines.
func each(count, concurrency int, work func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range concurrency {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				work(i)
			}
		}()
	}
	all.Wait()
}

func milliseconds(since time.Time) float64 {
	return float64(time.Since(since).Microseconds()) / 1000
}

// beside runs a benchmark while the background tasks run.
func beside(p *driverPlugin, o *options, work func(*description, *timings) error) (*timings, error) {
	d, err := described(o.task)
	if err != nil {
		return nil, err
	}
	found := &timings{Count: o.count, Concurrency: o.concurrency, Background: o.background}
	handles, err := p.inBatches(d, o.background, 16)
	if err == nil {
		began := time.Now()
		err = work(d, found)
		found.Seconds = max(found.Seconds, time.Since(began).Seconds())
	}
	return found, errors.Join(err, p.removed(handles, 16))
}

// benchStart times StartTask in rounds of as many as are wanted at a time; what stops them between is not counted.
func benchStart(p *driverPlugin, o *options) (any, error) {
	until := atOnce
	if o.ping {
		until = answers
	}
	return beside(p, o, func(d *description, found *timings) error {
		found.What = "start"
		for len(found.Milliseconds) < o.count {
			handles, took, err := p.several(d, o.concurrency, until)
			found.Milliseconds = append(found.Milliseconds, took...)
			if err := errors.Join(err, p.removed(handles, o.concurrency)); err != nil {
				return err
			}
		}
		return nil
	})
}

// benchPairs times tasks that are started, stopped and destroyed.
func benchPairs(p *driverPlugin, o *options) (any, error) {
	return beside(p, o, func(d *description, found *timings) error {
		found.What = "pairs"
		found.Milliseconds = make([]float64, o.count)
		problems := make([]error, o.count)
		each(o.count, o.concurrency, func(i int) {
			began := time.Now()
			handles, err := p.inBatches(d, 1, 1)
			problems[i] = errors.Join(err, p.removed(handles, 1))
			found.Milliseconds[i] = milliseconds(began)
		})
		return errors.Join(problems...)
	})
}

// benchRecover kills the plugin while tasks run, and times how a new one takes them up again.
func benchRecover(p *driverPlugin, o *options) (any, error) {
	d, err := described(o.task)
	if err != nil {
		return nil, err
	}
	handles, err := p.inBatches(d, o.count, 16)
	defer func() { _ = p.removed(handles, 16) }()
	if err != nil {
		return nil, err
	}
	if err := p.replaced(o); err != nil {
		return nil, err
	}
	found := &timings{What: "recover", Count: o.count, Concurrency: o.concurrency}
	found.Milliseconds = make([]float64, o.count)
	problems := make([]error, o.count)
	began := time.Now()
	each(o.count, o.concurrency, func(i int) {
		began := time.Now()
		problems[i] = p.RecoverTask(handles[i])
		found.Milliseconds[i] = milliseconds(began)
	})
	found.Seconds = time.Since(began).Seconds()
	return found, errors.Join(problems...)
}

// replaced kills the plugin with SIGKILL and launches it again.
func (p *driverPlugin) replaced(o *options) error {
	if err := p.command.Process.Kill(); err != nil {
		return err
	}
	for !p.process.Exited() {
		time.Sleep(time.Millisecond)
	}
	next, err := launch(o.plugin, logger(o.log))
	if err != nil {
		return err
	}
	*p = *next
	return p.configure(o.config)
}

// benchLaunch times the plugin from its exec to its handshake, and to its first answer.
func benchLaunch(_ *driverPlugin, o *options) (any, error) {
	found := &timings{What: "launch", Count: o.count, Concurrency: 1}
	for range o.count {
		began := time.Now()
		p, err := launch(o.plugin, logger(o.log))
		if err != nil {
			return nil, err
		}
		_, err = p.PluginInfo()
		found.Milliseconds = append(found.Milliseconds, milliseconds(began))
		p.process.Kill()
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// hold runs tasks, watched like the agent's, until standard input ends; it says when they run and who runs them.
func hold(p *driverPlugin, o *options) (any, error) {
	d, err := described(o.task)
	if err != nil {
		return nil, err
	}
	handles, err := p.inBatches(d, o.count, 16)
	defer func() { _ = p.removed(handles, 16) }()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := p.watch(ctx, handles, o.interval); err != nil {
		return nil, err
	}
	fmt.Printf("{\"tasks\": %d, \"pid\": %d}\n", len(handles), p.pid())
	bufio.NewScanner(os.Stdin).Scan()
	return nil, nil
}

// watch opens the streams that an agent holds open while tasks run.
func (p *driverPlugin) watch(ctx context.Context, handles []*drivers.TaskHandle, interval time.Duration) error {
	fingerprints, err := p.Fingerprint(ctx)
	go discard(fingerprints)
	heard, also := p.TaskEvents(ctx)
	go discard(heard)
	err = errors.Join(err, also)
	for _, handle := range handles {
		results, waiting := p.WaitTask(ctx, handle.Config.ID)
		samples, sampling := p.TaskStats(ctx, handle.Config.ID, interval)
		go discard(results)
		go discard(samples)
		err = errors.Join(err, waiting, sampling)
	}
	return err
}

func discard[T any](stream <-chan T) {
	for range stream {
	}
}
