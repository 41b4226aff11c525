// Driver-client speaks with a task driver plugin as Nomad's agent does, by Nomad's own packages: it launches the plugin
// anew for each command, and finds tasks of an earlier one by their stored handles, as a restarted agent does.
// Every command prints one JSON document; bench prints one for each request.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
)

// options are all flags of all commands; each takes what it needs.
type options struct {
	plugin, config, log  string
	task, handle, signal string
	timeout, interval    time.Duration
	force                bool
	samples              int
	consoles, cgroups    string
	words                []string
}

// command does its work with a plugin that is launched and configured, and returns what is to be printed.
type command func(*driverPlugin, *options) (any, error)

var commands = map[string]command{
	"info":        info,
	"schema":      schema,
	"fingerprint": fingerprint,
	"start":       start,
	"recover":     onTask(inspected),
	"inspect":     onTask(inspected),
	"wait":        onTask(waited),
	"stop":        onTask(stopped),
	"destroy":     onTask(destroyed),
	"signal":      onTask(signalled),
	"exec":        onTask(executed),
	"stats":       onTask(sampled),
	"events":      events,
	"bench":       bench,
	"conformance": conformance,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "usage: driver-client COMMAND [FLAG]… [WORD]…; COMMAND is one of %s\n", names())
		os.Exit(2)
	}
	if err := run(commands[os.Args[1]], flags(os.Args[1], os.Args[2:])); err != nil {
		print(map[string]any{"error": err.Error(), "recoverable": structs.IsRecoverable(err)})
		os.Exit(1)
	}
}

func names() string {
	var all []string
	for name := range commands {
		all = append(all, name)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

func flags(name string, words []string) *options {
	o := &options{}
	set := flag.NewFlagSet(name, flag.ExitOnError)
	set.StringVar(&o.plugin, "plugin", "/usr/lib/nomad/plugins/solo5", "the plugin's executable")
	set.StringVar(&o.config, "config", "{}", "the plugin's configuration, as JSON")
	set.StringVar(&o.log, "log", "warn", "least level of what is shown of the plugin's log")
	set.StringVar(&o.task, "task", "", "file that describes a task, as JSON")
	set.StringVar(&o.handle, "handle", "", "file that keeps a task's handle")
	set.StringVar(&o.signal, "signal", "", "for stop and signal")
	set.DurationVar(&o.timeout, "timeout", 5*time.Second, "for stop and exec; how long fingerprint and events listen")
	set.DurationVar(&o.interval, "interval", time.Second, "between two samples")
	set.BoolVar(&o.force, "force", false, "destroy a task that runs")
	set.IntVar(&o.samples, "samples", 1, "how many to take")
	set.StringVar(&o.consoles, "consoles", "", "for bench: directory of the tasks' FIFOs")
	set.StringVar(&o.cgroups, "cgroups", "", "for bench: directory of the tasks' cgroups; none without it")
	_ = set.Parse(words) // ExitOnError
	o.words = set.Args()
	return o
}

func run(do command, o *options) error {
	p, err := launch(o.plugin, logger(o.log))
	if err != nil {
		return err
	}
	defer func() { p.process.Kill() }()
	if err := p.configure(o.config); err != nil {
		return err
	}
	result, err := do(p, o)
	if result != nil {
		print(result)
	}
	return err
}

func print(result any) {
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		panic(errors.Join(errors.New("a result that is no JSON"), err))
	}
	fmt.Println(string(text))
}
