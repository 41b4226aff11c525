package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// driverPlugin is a plugin's process and what Nomad's client makes of its connection.
type driverPlugin struct {
	drivers.DriverPlugin
	process *plugin.Client
	command *exec.Cmd
}

// logger passes on what the plugin logs, on our standard error.
func logger(level string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "client", Level: hclog.LevelFromString(level), Output: os.Stderr})
}

// launch starts the plugin at path with the settings of Nomad's loader, and waits for its handshake.
func launch(path string, log hclog.Logger) (*driverPlugin, error) {
	command := exec.Command(path)
	return connect(&plugin.ClientConfig{Cmd: command, Logger: log}, command)
}

// reattach connects to a process that another client launched, as an agent does that was killed and came back.
func reattach(earlier *driverPlugin, log hclog.Logger) (*driverPlugin, error) {
	return connect(&plugin.ClientConfig{Reattach: earlier.process.ReattachConfig(), Logger: log}, nil)
}

func connect(config *plugin.ClientConfig, command *exec.Cmd) (*driverPlugin, error) {
	config.HandshakeConfig = base.Handshake
	config.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	config.Plugins = plugin.PluginSet{
		base.PluginTypeBase:   &base.PluginBase{},
		base.PluginTypeDriver: drivers.NewDriverPlugin(nil, config.Logger),
	}
	process := plugin.NewClient(config)
	connection, err := process.Client()
	if err != nil {
		process.Kill()
		return nil, err
	}
	raw, err := connection.Dispense(base.PluginTypeDriver)
	if err != nil {
		process.Kill()
		return nil, err
	}
	return &driverPlugin{DriverPlugin: raw.(drivers.DriverPlugin), process: process, command: command}, nil
}

// killed kills the plugin with SIGKILL; without effect on one that has ended.
func (p *driverPlugin) killed() error {
	if err := p.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for !p.process.Exited() {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// replaced kills the plugin with SIGKILL and launches it again.
func (p *driverPlugin) replaced(o *options) error {
	if err := p.killed(); err != nil {
		return err
	}
	next, err := launch(o.plugin, logger(o.log))
	if err != nil {
		return err
	}
	*p = *next
	return p.configure(o.config)
}

func (p *driverPlugin) pid() int {
	return p.process.ReattachConfig().Pid
}

// configure sends the plugin's configuration twice to be judged and once to stay, as the agent's launches do together.
func (p *driverPlugin) configure(text string) error {
	schema, err := p.ConfigSchema()
	if err != nil {
		return err
	}
	value, err := decode(schema, text)
	if err != nil {
		return fmt.Errorf("plugin configuration: %w", err)
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return err
	}
	judged := &base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: packed}
	stays := &base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: packed, AgentConfig: agentConfig()}
	for _, config := range []*base.Config{judged, judged, stays} {
		if err := p.SetConfig(config); err != nil {
			return err
		}
	}
	return nil
}

func agentConfig() *base.AgentConfig {
	return &base.AgentConfig{Driver: &base.ClientDriverConfig{
		ClientMinPort: 14000,
		ClientMaxPort: 14512,
		Topology:      numalib.Scan(numalib.PlatformScanners(true)),
	}}
}

// decode reads JSON by a plugin's schema, the way Nomad reads what its configuration and its jobs say.
func decode(schema *hclspec.Spec, text string) (cty.Value, error) {
	spec, err := converted(schema)
	if err != nil {
		return cty.NilVal, err
	}
	var plain map[string]any
	if err := json.Unmarshal([]byte(text), &plain); err != nil {
		return cty.NilVal, err
	}
	value, _, problems := hclutils.ParseHclInterface(plain, spec, nil)
	return value, errors.Join(problems...)
}

func converted(schema *hclspec.Spec) (hcldec.Spec, error) {
	spec, diagnostics := hclspecutils.Convert(schema)
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	return spec, nil
}
