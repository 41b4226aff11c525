package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// request is one line of a benchmark's standard input.
type request struct {
	Do          string `json:"do"`
	Count       int    `json:"count"`
	Concurrency int    `json:"concurrency"`
	Until       string `json:"until"` // ends a start: empty for its reply
}

// session is one benchmark: a plugin, and the tasks that it runs.
type session struct {
	*driverPlugin
	options *options
	task    *description
	fifos   *fifos
	latest  []*drivers.TaskHandle // of the last start
	crowd   []*drivers.TaskHandle // what runs beside
	unwatch context.CancelFunc
}

// operation is done with the session's plugin; what it prepares is not in its timings.
type operation func(*session, request) (timings, error)

var operations = map[string]operation{
	"start":       (*session).start,
	"drop":        (*session).drop,
	"clear":       (*session).clear,
	"pairs":       (*session).pairs,
	"grow":        (*session).grow,
	"watch":       (*session).watch,
	"kill":        (*session).kill,
	"replace":     (*session).replace,
	"recover":     (*session).recover,
	"fingerprint": (*session).fingerprint,
	"launch":      (*session).launch,
}

// operationLimit ends a benchmark that hangs.
const operationLimit = 10 * time.Minute

// bench does what each line of standard input asks for and answers each with a line, so that whoever measures can take
// turns with it. Its tasks end with it.
func bench(p *driverPlugin, o *options) (result any, err error) {
	s, err := newSession(p, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	requests, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		found, err := s.perform(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Do, err)
		}
		if err := answers.Encode(found); err != nil {
			return nil, err
		}
	}
}

func newSession(p *driverPlugin, o *options) (*session, error) {
	task, err := described(o.task)
	if err != nil {
		return nil, err
	}
	fifos, err := newFIFOs()
	return &session{driverPlugin: p, options: o, task: task, fifos: fifos, unwatch: func() {}}, err
}

func (s *session) end() error {
	s.unwatch()
	_, dropped := s.cleared(s.latest, 16)
	_, cleared := s.cleared(s.crowd, 16)
	return errors.Join(dropped, cleared, s.fifos.close())
}

func (s *session) perform(r request) (timings, error) {
	do := operations[r.Do]
	if do == nil {
		return timings{}, errors.New("no such operation")
	}
	stuck := time.AfterFunc(operationLimit, func() { panic(r.Do + " takes too long") })
	defer stuck.Stop()
	took, err := do(s, r)
	took.Pid = s.pid()
	return took, err
}

// start times StartTask of count tasks at the same time, which stay until they are dropped.
func (s *session) start(r request) (timings, error) {
	until := ends[r.Until]
	if until == nil {
		return timings{}, fmt.Errorf("no such end of a start: %q", r.Until)
	}
	handles, took, err := s.started(r.Count, until)
	s.latest = append(s.latest, handles...)
	return took, err
}

// drop times StopTask and DestroyTask of what start has started.
func (s *session) drop(r request) (timings, error) {
	took, err := s.cleared(s.latest, max(1, r.Concurrency))
	s.latest = nil
	return took, err
}

// clear times the same of what runs beside.
func (s *session) clear(r request) (timings, error) {
	took, err := s.cleared(s.crowd, max(1, r.Concurrency))
	s.crowd = nil
	return took, err
}

// pairs times tasks that are started, stopped and destroyed, so many at a time.
func (s *session) pairs(r request) (timings, error) {
	configs, err := s.configs(r.Count)
	if err != nil {
		return timings{}, err
	}
	return each(r.Count, r.Concurrency, func(i int) error {
		handle, _, err := s.StartTask(configs[i])
		if err != nil {
			return err
		}
		_, err = s.cleared([]*drivers.TaskHandle{handle}, 1)
		return err
	})
}

// grow has count tasks run beside what is measured from now on.
func (s *session) grow(r request) (timings, error) {
	for len(s.crowd) < r.Count {
		handles, _, err := s.started(min(16, r.Count-len(s.crowd)), nothingMore)
		s.crowd = append(s.crowd, handles...)
		if err != nil {
			return timings{}, err
		}
	}
	return timings{}, nil
}

// watch opens the streams that an agent holds open while its tasks run.
func (s *session) watch(request) (timings, error) {
	s.unwatch()
	ctx, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	fingerprints, err := s.Fingerprint(ctx)
	go discard(fingerprints)
	heard, also := s.TaskEvents(ctx)
	go discard(heard)
	err = errors.Join(err, also)
	for _, handle := range s.crowd {
		results, waiting := s.WaitTask(ctx, handle.Config.ID)
		samples, sampling := s.TaskStats(ctx, handle.Config.ID, time.Second)
		go discard(results)
		go discard(samples)
		err = errors.Join(err, waiting, sampling)
	}
	return timings{}, err
}

func discard[T any](stream <-chan T) {
	for range stream {
	}
}

// kill kills the plugin with SIGKILL.
func (s *session) kill(request) (timings, error) {
	s.unwatch()
	return timings{}, s.killed()
}

// replace kills the plugin with SIGKILL, unless it was killed already, and launches it again.
func (s *session) replace(request) (timings, error) {
	s.unwatch()
	return timings{}, s.replaced(s.options)
}

// recover times how a plugin that was replaced takes up the tasks that run, so many at a time.
func (s *session) recover(r request) (timings, error) {
	return each(len(s.crowd), r.Concurrency, func(i int) error { return s.RecoverTask(s.crowd[i]) })
}

// fingerprint times looks at the machine, each from its request to its answer.
func (s *session) fingerprint(r request) (timings, error) {
	return each(r.Count, 1, func(int) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		answers, err := s.Fingerprint(ctx)
		if err != nil {
			return err
		}
		if first := <-answers; first == nil || first.Err != nil {
			return fmt.Errorf("no fingerprint: %+v", first)
		}
		return nil
	})
}

// launch times other plugins beside ours, from their exec until they are connected with.
func (s *session) launch(r request) (timings, error) {
	return each(r.Count, 1, func(int) error {
		another, err := launch(s.options.plugin, logger(s.options.log))
		if err == nil {
			go another.process.Kill()
		}
		return err
	})
}

// configs are starts of the task, with consoles of their own.
func (s *session) configs(count int) ([]*drivers.TaskConfig, error) {
	configs := make([]*drivers.TaskConfig, count)
	for i := range configs {
		config, err := s.fresh(s.task)
		if err != nil {
			return nil, err
		}
		if err := s.fifos.open(config); err != nil {
			return nil, err
		}
		configs[i] = config
	}
	return configs, nil
}

// started starts tasks at the same time, and times that.
func (s *session) started(count int, until end) ([]*drivers.TaskHandle, timings, error) {
	configs, err := s.configs(count)
	if err != nil {
		return nil, timings{}, err
	}
	return s.atOnce(configs, until)
}

// cleared times how tasks are stopped and destroyed, and removes their consoles, which is not timed.
func (s *session) cleared(handles []*drivers.TaskHandle, concurrency int) (timings, error) {
	took, err := s.removals(handles, concurrency)
	for _, handle := range handles {
		err = errors.Join(err, s.fifos.remove(handle.Config))
	}
	return took, err
}
