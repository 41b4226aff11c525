package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// claim is something that Nomad relies on; the check's error says how it does not hold.
type claim struct {
	name  string
	check func(*trial) error
}

// verdict is what came of a claim.
type verdict struct {
	Claim   string  `json:"claim"`
	Problem string  `json:"problem"` // empty where it holds
	Seconds float64 `json:"seconds"`
}

// trial is what the claims are checked on: a plugin, and a task that runs for ever.
type trial struct {
	*driverPlugin
	options *options
	task    *description
	handle  *drivers.TaskHandle
	network *drivers.DriverNetwork
}

const bounded = 20 * time.Second // for any single claim; those with a limit of their own are stricter

// conformance checks every claim in turn, on one plugin after another, and leaves no task behind.
func conformance(p *driverPlugin, o *options) (any, error) {
	task, err := described(o.task)
	if err != nil {
		return nil, err
	}
	t := &trial{driverPlugin: p, options: o, task: task}
	defer t.clear()
	var verdicts []verdict
	failed := 0
	for _, c := range claims {
		began := time.Now()
		v := verdict{Claim: c.name}
		if err := t.within(bounded, c.check); err != nil {
			v.Problem = err.Error()
			failed++
		}
		v.Seconds = time.Since(began).Seconds()
		verdicts = append(verdicts, v)
	}
	if failed > 0 {
		return verdicts, fmt.Errorf("%d of %d claims do not hold", failed, len(claims))
	}
	return verdicts, nil
}

func (t *trial) within(limit time.Duration, check func(*trial) error) error {
	done := make(chan error, 1)
	go func() { done <- check(t) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("not within %v", limit)
	}
}

func (t *trial) clear() {
	if t.handle != nil {
		_ = t.removed([]*drivers.TaskHandle{t.handle}, 1)
	}
}

// started starts another task of the kind under trial; the caller removes it.
func (t *trial) started() (*drivers.TaskHandle, error) {
	handles, _, err := t.several(t.task, 1, nothingMore)
	if err != nil {
		return nil, err
	}
	return handles[0], nil
}

func (t *trial) id() string {
	if t.handle == nil {
		return "no-task"
	}
	return t.handle.Config.ID
}

// expect turns a condition into an error that says what was expected and what came.
func expect(holds bool, format string, words ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, words...)
}

// firstOf returns the first value of a stream, within a time.
func firstOf[T any](stream <-chan T, limit time.Duration) (T, error) {
	var none T
	select {
	case value, open := <-stream:
		if !open {
			return none, errors.New("the stream ended without a value")
		}
		return value, nil
	case <-time.After(limit):
		return none, fmt.Errorf("nothing came within %v", limit)
	}
}

// ends waits for a task's end, and goes away after a time: by no deadline that the plugin could see, as the agent does.
func (t *trial) ends(id string, limit time.Duration) (*drivers.ExitResult, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(limit, cancel).Stop()
	results, err := t.WaitTask(ctx, id)
	if err != nil {
		return nil, err
	}
	result := <-results
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return result, nil
}
