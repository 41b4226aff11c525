package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const unknown = "6f1b4a52-0d3c-4c1e-9a57-3d9f7c5b8a10/none/00000000"

// claims are checked in this order: later ones use the task that an earlier one started.
var claims = []claim{
	{"it is a driver named solo5 of the one plugin API there is", isDriver},
	{"its schemas are ones that Nomad can use", schemasConvert},
	{"its first fingerprint comes at once, healthy, with its own attributes only", isHealthy},
	{"a stream of fingerprints stays open", fingerprintsStay},
	{"a start answers with a handle that can be stored", startsTask},
	{"the same start again changes nothing", startsOnce},
	{"a running task can be inspected", isRunning},
	{"samples of a running task come, and say what was measured", samplesCome},
	{"a waiter that goes away changes nothing", waiterGoes},
	{"an unknown signal is refused, and the task runs on", signalRefused},
	{"exec gives a reason within a second", execRefused},
	{"streaming exec gives a reason within a second", execStreamRefused},
	{"a task that it knows can be recovered again", recoversKnown},
	{"an interrupt at the terminal does not end it", survivesInterrupt},
	{"another client can reattach to it", reattaches},
	{"killed with SIGKILL, its successor takes the task up by its stored handle", survivesKill},
	{"told to shut down, it exits with 0 within 2 s, and the task runs on", shutsDown},
	{"every waiter learns of the end", everyWaiter},
	{"stop of an ended task succeeds", stopsEnded},
	{"wait after the end answers at once", waitsAfterEnd},
	{"destroy succeeds twice", destroysTwice},
	{"a destroyed task cannot be recovered", recoversDestroyed},
	{"stop and destroy of an unknown task succeed", unknownGone},
	{"all else of an unknown task is an error that does not look like a crash", unknownElse},
	{"an image that is no image is refused for good", badImage},
	{"a port that is taken may be tried again", takenPort},
	{"hostile configurations are errors", hostile},
	{"sixteen starts and stops at a time", sixteen},
}

func isDriver(t *trial) error {
	about, err := t.PluginInfo()
	if err != nil {
		return err
	}
	return errors.Join(
		expect(about.Name == "solo5" && about.Type == base.PluginTypeDriver, "it is %s, a %s", about.Name, about.Type),
		expect(slices.Equal(about.PluginApiVersions, []string{drivers.ApiVersion010}), "API versions %v", about.PluginApiVersions),
	)
}

func schemasConvert(t *trial) error {
	plugin, err := t.ConfigSchema()
	if err != nil {
		return err
	}
	task, err := t.TaskConfigSchema()
	if err != nil {
		return err
	}
	_, first := converted(plugin)
	_, second := converted(task)
	return errors.Join(first, second)
}

func isHealthy(t *trial) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := t.Fingerprint(ctx)
	if err != nil {
		return err
	}
	first, err := firstOf(stream, 5*time.Second)
	if err != nil {
		return err
	}
	for name := range first.Attributes {
		err = errors.Join(err, expect(strings.HasPrefix(name, "driver.solo5"), "attribute %s", name))
	}
	return errors.Join(err, first.Err,
		expect(first.Health == drivers.HealthStateHealthy, "%s: %s", first.Health, first.HealthDescription))
}

func fingerprintsStay(t *trial) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := t.Fingerprint(ctx)
	if err != nil {
		return err
	}
	if _, err := firstOf(stream, 5*time.Second); err != nil {
		return err
	}
	select {
	case again, open := <-stream:
		return expect(open && again.Err == nil, "it ended")
	case <-time.After(3 * time.Second):
		return nil
	}
}

func startsTask(t *trial) error {
	handles, _, err := t.several(t.task, 1, func(network *drivers.DriverNetwork) error {
		t.network = network
		return nil
	})
	if err != nil {
		return err
	}
	t.handle = handles[0]
	return errors.Join(
		expect(t.handle.Version >= 1, "version %d is that of a handle before plugins", t.handle.Version),
		expect(t.handle.State == drivers.TaskStateRunning, "state %s", t.handle.State),
		expect(len(t.handle.DriverState) > 0, "there is no driver state"),
		expect(t.network != nil && t.network.IP != "", "there is no address: %+v", t.network),
		t.storable(),
	)
}

// storable compares a handle with what comes back of a file.
func (t *trial) storable() error {
	file, err := os.CreateTemp("", "handle")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := storeHandle(file.Name(), t.handle); err != nil {
		return err
	}
	stored, err := storedHandle(file.Name())
	if err != nil {
		return err
	}
	same := bytes.Equal(stored.DriverState, t.handle.DriverState) && stored.Config.ID == t.handle.Config.ID
	t.handle = stored
	return expect(same, "the stored handle is another")
}

func startsOnce(t *trial) error {
	config, err := t.fresh(t.task)
	if err != nil {
		return err
	}
	first, _, err := t.StartTask(config)
	if err != nil {
		return err
	}
	defer func() { _ = t.removed([]*drivers.TaskHandle{first}, 1) }()
	second, _, err := t.StartTask(config)
	if err != nil {
		return err
	}
	return expect(bytes.Equal(first.DriverState, second.DriverState), "the second start has another handle")
}

func isRunning(t *trial) error {
	status, err := t.InspectTask(t.id())
	if err != nil {
		return err
	}
	age := time.Since(status.StartedAt)
	return errors.Join(
		expect(status.State == drivers.TaskStateRunning, "state %s", status.State),
		expect(age > 0 && age < time.Minute, "started %v ago", age),
		expect(status.NetworkOverride != nil && status.NetworkOverride.IP == t.network.IP, "address %+v, started with %+v", status.NetworkOverride, t.network),
	)
}

func samplesCome(t *trial) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := t.TaskStats(ctx, t.id(), time.Second)
	if err != nil {
		return err
	}
	for range 2 {
		sample, err := firstOf(stream, 5*time.Second)
		if err != nil {
			return err
		}
		age := time.Since(time.Unix(0, sample.Timestamp))
		err = errors.Join(
			expect(age < 5*time.Second, "the sample is %v old", age),
			expect(sample.ResourceUsage.CpuStats.Measured != nil, "nothing of the processor was measured"),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func waiterGoes(t *trial) error {
	if _, err := t.ends(t.id(), 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the waiter was answered: %w", err)
	}
	return isRunning(t)
}

func signalRefused(t *trial) error {
	for _, signal := range []string{"SIGUSR1", "SIGNONSENSE", ""} {
		if err := t.SignalTask(t.id(), signal); err == nil {
			return fmt.Errorf("signal %q was accepted", signal)
		}
	}
	return isRunning(t)
}

func execRefused(t *trial) error {
	began := time.Now()
	result, err := t.ExecTask(t.id(), []string{"/bin/true"}, time.Minute)
	if err == nil {
		err = expect(len(result.Stdout)+len(result.Stderr) > 0 && !result.ExitResult.Successful(), "it succeeded")
	} else {
		err = isReason(err)
	}
	return errors.Join(err, expect(time.Since(began) < time.Second, "it took %v", time.Since(began)))
}

// terminal is a user who types nothing.
type terminal struct {
	shown strings.Builder
	gone  chan struct{}
}

func (u *terminal) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	u.shown.Write(append(m.GetStdout().GetData(), m.GetStderr().GetData()...))
	return nil
}

func (u *terminal) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	<-u.gone
	return nil, io.EOF
}

func execStreamRefused(t *trial) error {
	user := &terminal{gone: make(chan struct{})}
	defer close(user.gone)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	streaming := t.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	err := streaming.ExecTaskStreamingRaw(ctx, t.id(), []string{"/bin/sh"}, true, user)
	if ctx.Err() != nil {
		return errors.New("it did not answer within a second")
	}
	if err != nil {
		return isReason(err)
	}
	return expect(user.shown.Len() > 0, "it showed nothing")
}

// isReason tells an answer of the driver's from what looks as if there were no driver.
func isReason(err error) error {
	text := err.Error()
	for _, code := range []string{"Unavailable", "Canceled", "Unimplemented", "Unknown", "Internal"} {
		if strings.Contains(text, "code = "+code) {
			return fmt.Errorf("it answers %q", text)
		}
	}
	return nil
}

func recoversKnown(t *trial) error {
	return errors.Join(t.RecoverTask(t.handle), isRunning(t))
}

func survivesInterrupt(t *trial) error {
	if err := t.command.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond)
	return isRunning(t)
}

func reattaches(t *trial) error {
	other, err := reattach(t.driverPlugin, logger(t.options.log))
	if err != nil {
		return err
	}
	_, first := other.PluginInfo()
	return errors.Join(first, other.RecoverTask(t.handle), isRunning(t))
}

func survivesKill(t *trial) error {
	if err := t.replaced(t.options); err != nil {
		return err
	}
	return errors.Join(t.RecoverTask(t.handle), isRunning(t))
}

func shutsDown(t *trial) error {
	began, before := time.Now(), t.command
	t.process.Kill()
	took := time.Since(began)
	next, err := launch(t.options.plugin, logger(t.options.log))
	if err != nil {
		return err
	}
	*t.driverPlugin = *next
	status := before.ProcessState.String()
	return errors.Join(
		expect(took < 2*time.Second, "it took %v", took),
		expect(before.ProcessState.Success(), "it ended with %s", status),
		t.configure(t.options.config), t.RecoverTask(t.handle), isRunning(t),
	)
}

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
	handles, _, err := t.several(t.task, 16, atOnce)
	return errors.Join(err, t.removed(handles, 16))
}
