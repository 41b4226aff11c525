// Package azurekeyvault stands in for the wrapper of that name, which keeps Nomad's root key in a cloud. No test does, and
// its client is a part of what the agent would be compiled from.
package azurekeyvault

import (
	"context"
	"errors"

	kms "github.com/hashicorp/go-kms-wrapping/v2"
)

// Wrapper can be made and not configured, so that nothing else of it is ever called.
type Wrapper struct{ kms.Wrapper }

// NewWrapper gives one without a client.
func NewWrapper() *Wrapper { return &Wrapper{} }

// SetConfig refuses a keyring of this kind.
func (*Wrapper) SetConfig(context.Context, ...kms.Option) (*kms.WrapperConfig, error) {
	return nil, errors.New("a keyring in azurekeyvault cannot be used: this agent is built without it")
}
