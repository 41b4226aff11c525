// Driver-client speaks with a task driver plugin as Nomad's agent does, by Nomad's own packages. Conformance prints one
// JSON document; bench one for each request.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/hashicorp/nomad/nomad/structs"
)

// options are all flags of both commands; each takes what it needs.
type options struct {
	plugin, config, log, task string
}

// command does its work with a plugin that is launched and configured, and returns what is to be printed.
type command func(*driverPlugin, *options) (any, error)

var commands = map[string]command{"bench": bench, "conformance": conformance}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: driver-client bench|conformance [FLAG]…")
		os.Exit(2)
	}
	if err := run(commands[os.Args[1]], flags(os.Args[1], os.Args[2:])); err != nil {
		print(map[string]any{"error": err.Error(), "recoverable": structs.IsRecoverable(err)})
		os.Exit(1)
	}
}

func flags(name string, words []string) *options {
	o := &options{}
	set := flag.NewFlagSet(name, flag.ExitOnError)
	set.StringVar(&o.plugin, "plugin", "/usr/lib/nomad/plugins/solo5", "the plugin's executable")
	set.StringVar(&o.config, "config", "{}", "the plugin's configuration, as JSON")
	set.StringVar(&o.log, "log", "warn", "least level of what is shown of the plugin's log")
	set.StringVar(&o.task, "task", "", "file that describes a task, as JSON")
	_ = set.Parse(words) // ExitOnError
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
