package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
)

func everyWaiter(t *trial) error {
	results := make(chan error, 3)
	for range cap(results) {
		go func() {
			result, err := t.ends(t.id(), 15*time.Second)
			if err == nil && result.Err != nil {
				err = result.Err
			}
			results <- err
		}()
	}
	time.Sleep(100 * time.Millisecond)
	if err := t.StopTask(t.id(), patience, "SIGTERM"); err != nil {
		return err
	}
	for range cap(results) {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

func stopsEnded(t *trial) error {
	return t.StopTask(t.id(), patience, "SIGTERM")
}

func waitsAfterEnd(t *trial) error {
	began := time.Now()
	_, err := t.ends(t.id(), 5*time.Second)
	return errors.Join(err, expect(time.Since(began) < time.Second, "it took %v", time.Since(began)))
}

func destroysTwice(t *trial) error {
	return errors.Join(t.DestroyTask(t.id(), true), t.DestroyTask(t.id(), true))
}

func recoversDestroyed(t *trial) error {
	err := t.RecoverTask(t.handle)
	if err == nil {
		return errors.New("it was recovered")
	}
	return isReason(err)
}

func unknownGone(t *trial) error {
	return errors.Join(t.StopTask(unknown, patience, ""), t.DestroyTask(unknown, true), t.DestroyTask("", true))
}

func unknownElse(t *trial) error {
	_, inspecting := t.InspectTask(unknown)
	_, executing := t.ExecTask(unknown, []string{"true"}, time.Second)
	answers := map[string]error{
		"inspect": inspecting, "exec": executing, "signal": t.SignalTask(unknown, "SIGTERM"),
	}
	if result, err := t.ends(unknown, 5*time.Second); err != nil {
		answers["wait"] = fmt.Errorf("code = Unavailable: %w", err)
	} else {
		answers["wait"] = result.Err
	}
	var wrong error
	for verb, err := range answers {
		if err == nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s succeeds", verb))
		} else {
			wrong = errors.Join(wrong, isReason(err))
		}
	}
	return wrong
}

// refused starts a task with another configuration, or other ports, and returns why it does not start.
func (t *trial) refused(config map[string]any, ports []portDescription) error {
	other := *t.task
	other.Config, _ = json.Marshal(config)
	started, err := t.taskConfig(&other)
	if err != nil {
		return err
	}
	for _, port := range ports {
		*started.Resources.Ports = append(*started.Resources.Ports, structs.AllocatedPortMapping{
			Label: port.Label, Value: port.Value, To: port.To, HostIP: port.HostIP,
		})
	}
	handle, _, err := t.StartTask(started)
	if err == nil {
		_ = t.removed([]*drivers.TaskHandle{handle}, 1)
	}
	return err
}

func badImage(t *trial) error {
	for _, image := range []string{"/etc/hostname", "/nonexistent", "/dev/zero", "/", ""} {
		err := t.refused(map[string]any{"unikernel": image}, nil)
		if err == nil {
			return fmt.Errorf("%q was started", image)
		}
		if structs.IsRecoverable(err) || isReason(err) != nil {
			return fmt.Errorf("%q: recoverable %v, %w", image, structs.IsRecoverable(err), err)
		}
	}
	return nil
}

func takenPort(t *trial) error {
	first, err := t.started()
	if err != nil {
		return err
	}
	defer func() { _ = t.removed([]*drivers.TaskHandle{first}, 1) }()
	held := *first.Config.Resources.Ports
	if len(held) == 0 {
		return errors.New("the task under trial has no port")
	}
	again := *t.task
	again.Ports = []portDescription{{Label: held[0].Label, Value: held[0].Value, To: held[0].To, HostIP: held[0].HostIP}}
	config, err := t.taskConfig(&again)
	if err != nil {
		return err
	}
	second, _, err := t.StartTask(config)
	if err == nil {
		_ = t.removed([]*drivers.TaskHandle{second}, 1)
		return errors.New("two tasks have one port")
	}
	return expect(structs.IsRecoverable(err), "it cannot be tried again: %w", err)
}

// hostile configurations are sent as they are, past Nomad's own check of the schema.
func hostile(t *trial) error {
	values := []any{
		nil, 7, "text", []int{1}, map[string]any{}, map[string]any{"unikernel": 7}, map[string]any{"unikernel": nil},
		map[string]any{"unikernel": strings.Repeat("x", 1<<20)}, map[string]any{"unikernel": "a\x00b"},
		map[string]any{"unikernel": "/etc/hostname", "args": 3}, map[string]any{"unikernel": "/etc/hostname", "nonsense": 1},
		map[string]any{"unikernel": "/etc/hostname", "nic": []any{"x"}, "block": map[string]any{"a": 1}},
	}
	for _, value := range values {
		config := t.task.unconfigured()
		if err := config.EncodeConcreteDriverConfig(value); err != nil {
			return err
		}
		handle, _, err := t.StartTask(config)
		if err == nil {
			_ = t.removed([]*drivers.TaskHandle{handle}, 1)
			return fmt.Errorf("%.80v was started", value)
		}
		if structs.IsRecoverable(err) || isReason(err) != nil {
			return fmt.Errorf("%.80v: recoverable %v, %w", value, structs.IsRecoverable(err), err)
		}
	}
	_, err := t.PluginInfo()
	return err
}

func sixteen(t *trial) error {
	handles, _, err := t.several(t.task, 16, nothingMore)
	return errors.Join(err, t.removed(handles, 16))
}
