// Raw_exec serves Nomad's own raw_exec driver as a plugin, so that it can be measured like the others.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/plugins"
)

func main() {
	plugins.Serve(func(log hclog.Logger) any { return rawexec.NewRawExecDriver(context.Background(), log) })
}
