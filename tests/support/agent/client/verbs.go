package main

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

func info(p *driverPlugin, _ *options) (any, error) {
	about, err := p.PluginInfo()
	if err != nil {
		return nil, err
	}
	capabilities, err := p.Capabilities()
	return map[string]any{"info": about, "capabilities": capabilities}, err
}

func schema(p *driverPlugin, _ *options) (any, error) {
	plugin, err := p.ConfigSchema()
	if err != nil {
		return nil, err
	}
	task, err := p.TaskConfigSchema()
	return map[string]any{"plugin": plugin, "task": task}, err
}

func fingerprint(p *driverPlugin, o *options) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	stream, err := p.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	first, open := <-stream
	if !open {
		return nil, errors.New("the stream of fingerprints ended without one")
	}
	if first.Err != nil {
		return nil, first.Err
	}
	attributes := map[string]any{}
	for name, value := range first.Attributes {
		attributes[name] = value.GoString()
	}
	return map[string]any{
		"health": first.Health, "description": first.HealthDescription, "attributes": attributes,
	}, nil
}

func start(p *driverPlugin, o *options) (any, error) {
	d, err := described(o.task)
	if err != nil {
		return nil, err
	}
	config, err := p.taskConfig(d)
	if err != nil {
		return nil, err
	}
	handle, network, err := p.StartTask(config)
	if err != nil {
		return nil, err
	}
	if o.handle != "" {
		err = storeHandle(o.handle, handle)
	}
	return map[string]any{
		"id": config.ID, "version": handle.Version, "state": handle.State, "network": network,
	}, err
}

// onTask takes a task up again by its handle before something is done with it.
func onTask(do func(*driverPlugin, string, *options) (any, error)) command {
	return func(p *driverPlugin, o *options) (any, error) {
		handle, err := storedHandle(o.handle)
		if err != nil {
			return nil, err
		}
		if err := p.RecoverTask(handle); err != nil {
			return nil, err
		}
		return do(p, handle.Config.ID, o)
	}
}

func inspected(p *driverPlugin, id string, _ *options) (any, error) {
	return p.InspectTask(id)
}

func waited(p *driverPlugin, id string, _ *options) (any, error) {
	result, err := ended(context.Background(), p, id)
	if err != nil {
		return nil, err
	}
	return exit(result), nil
}

// ended waits for a task's end; the context's, if that comes first, is an error.
func ended(ctx context.Context, p *driverPlugin, id string) (*drivers.ExitResult, error) {
	results, err := p.WaitTask(ctx, id)
	if err != nil {
		return nil, err
	}
	result := <-results
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return result, nil
}

func exit(result *drivers.ExitResult) map[string]any {
	message := ""
	if result.Err != nil {
		message = result.Err.Error()
	}
	return map[string]any{
		"exit_code": result.ExitCode, "signal": result.Signal, "oom_killed": result.OOMKilled, "message": message,
	}
}

func stopped(p *driverPlugin, id string, o *options) (any, error) {
	if err := p.StopTask(id, o.timeout, o.signal); err != nil {
		return nil, err
	}
	return waited(p, id, o)
}

func destroyed(p *driverPlugin, id string, o *options) (any, error) {
	return map[string]any{"id": id}, p.DestroyTask(id, o.force)
}

func signalled(p *driverPlugin, id string, o *options) (any, error) {
	return map[string]any{"id": id}, p.SignalTask(id, o.signal)
}

func executed(p *driverPlugin, id string, o *options) (any, error) {
	result, err := p.ExecTask(id, o.words, o.timeout)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"stdout": string(result.Stdout), "stderr": string(bytes.TrimSpace(result.Stderr)), "exit": exit(result.ExitResult),
	}, nil
}

func sampled(p *driverPlugin, id string, o *options) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(o.samples+5)*o.interval)
	defer cancel()
	stream, err := p.TaskStats(ctx, id, o.interval)
	if err != nil {
		return nil, err
	}
	var samples []any
	for sample := range stream {
		if samples = append(samples, sample); len(samples) == o.samples {
			return samples, nil
		}
	}
	return samples, errors.New("the stream of samples ended early")
}

func events(p *driverPlugin, o *options) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	stream, err := p.TaskEvents(ctx)
	if err != nil {
		return nil, err
	}
	heard := []any{}
	for event := range stream {
		if event.Err == nil {
			heard = append(heard, event)
		}
	}
	return heard, nil
}
