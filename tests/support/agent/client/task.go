package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// description is a task as a file says it; what it leaves out is as in a job that says nothing.
type description struct {
	Name   string            `json:"name"`
	Job    string            `json:"job"`
	Config json.RawMessage   `json:"config"`
	Memory int64             `json:"memory"` // MiB
	Ports  []portDescription `json:"ports"`
}

const cpu = 100 // MHz

type portDescription struct {
	Label  string `json:"label"`
	Value  int    `json:"value"` // of the host
	To     int    `json:"to"`    // of the guest
	HostIP string `json:"host_ip"`
}

func described(path string) (*description, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &description{Name: "task", Job: "job", Memory: 32}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// taskConfig is what Nomad's task runner would send for a new start of the task.
func (p *driverPlugin) taskConfig(d *description) (*drivers.TaskConfig, error) {
	schema, err := p.TaskConfigSchema()
	if err != nil {
		return nil, err
	}
	value, err := decode(schema, string(d.Config))
	if err != nil {
		return nil, fmt.Errorf("task configuration: %w", err)
	}
	config := d.unconfigured()
	return config, config.EncodeDriverConfig(value)
}

func (d *description) unconfigured() *drivers.TaskConfig {
	alloc := uuid.Generate()
	return &drivers.TaskConfig{
		ID:            fmt.Sprintf("%s/%s/%s", alloc, d.Name, uuid.Short()),
		Name:          d.Name,
		AllocID:       alloc,
		JobName:       d.Job,
		JobID:         d.Job,
		TaskGroupName: d.Name,
		Namespace:     "default",
		NodeName:      "machine",
		NodeID:        "00000000-0000-0000-0000-000000000000",
		StdoutPath:    os.DevNull,
		StderrPath:    os.DevNull,
		Resources:     d.resources(),
	}
}

func (d *description) resources() *drivers.Resources {
	ports := make(structs.AllocatedPorts, len(d.Ports))
	for i, port := range d.Ports {
		ports[i] = structs.AllocatedPortMapping{Label: port.Label, Value: port.Value, To: port.To, HostIP: port.HostIP}
	}
	return &drivers.Resources{
		NomadResources: &structs.AllocatedTaskResources{
			Cpu:    structs.AllocatedCpuResources{CpuShares: cpu},
			Memory: structs.AllocatedMemoryResources{MemoryMB: d.Memory},
		},
		LinuxResources: &drivers.LinuxResources{
			CPUShares:        cpu,
			MemoryLimitBytes: d.Memory << 20,
		},
		Ports: &ports,
	}
}

// storeHandle writes a handle as Nomad's client keeps it: the driver's part of the task's configuration is left out.
func storeHandle(path string, handle *drivers.TaskHandle) error {
	var packed []byte
	if err := base.MsgPackEncode(&packed, handle); err != nil {
		return err
	}
	return os.WriteFile(path, packed, 0o600)
}

func storedHandle(path string) (*drivers.TaskHandle, error) {
	packed, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	handle := &drivers.TaskHandle{}
	return handle, base.MsgPackDecode(packed, handle)
}
