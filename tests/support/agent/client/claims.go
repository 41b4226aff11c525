package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

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
	{"a signal that would kill the tender is accepted, and the task runs on", signalWithoutEffect},
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
	handles, _, err := t.several(t.task, 1, func(_ *drivers.TaskConfig, network *drivers.DriverNetwork) error {
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
	if result, err := t.ends(t.id(), 200*time.Millisecond); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the waiter was answered: %+v, %v", result, err)
	}
	return isRunning(t)
}

func signalRefused(t *trial) error {
	for _, signal := range []string{"SIGNONSENSE", ""} {
		if err := t.SignalTask(t.id(), signal); err == nil {
			return fmt.Errorf("signal %q was accepted", signal)
		}
	}
	return isRunning(t)
}

// Nomad fails a task whose template's signal is refused.
func signalWithoutEffect(t *trial) error {
	return errors.Join(t.SignalTask(t.id(), "SIGUSR1"), isRunning(t))
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
	last  time.Time
	gone  chan struct{}
}

func (u *terminal) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	u.last = time.Now()
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
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	streaming := t.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	err := streaming.ExecTaskStreamingRaw(ctx, t.id(), []string{"/bin/sh"}, true, user)
	if ctx.Err() != nil {
		return errors.New("it did not end within five seconds")
	}
	if err != nil {
		return isReason(err)
	}
	took := user.last.Sub(began)
	return expect(user.shown.Len() > 0 && took < time.Second, "it showed %q in %v", user.shown.String(), took)
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
