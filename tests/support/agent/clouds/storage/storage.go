// Package storage stands in for the client of Google's storage, from which Nomad can fetch artifacts. No test does, and
// with all that it needs it is a sixth of what the agent would be compiled from.
package storage

import (
	"context"
	"errors"
	"io"

	"google.golang.org/api/option"
)

// Client is never made; its methods are those that go-getter names.
type Client struct{}

// NewClient refuses an artifact of Google's storage.
func NewClient(context.Context, ...option.ClientOption) (*Client, error) {
	return nil, errors.New("Google's storage cannot be read: this agent is built without its client")
}

// Close does nothing.
func (*Client) Close() error { return nil }

// Bucket cannot be reached.
func (*Client) Bucket(string) *BucketHandle { return nil }

// BucketHandle is never made.
type BucketHandle struct{}

// Objects cannot be reached.
func (*BucketHandle) Objects(context.Context, *Query) *ObjectIterator { return nil }

// Object cannot be reached.
func (*BucketHandle) Object(string) *ObjectHandle { return nil }

// Query is never sent.
type Query struct{ Prefix string }

// ObjectIterator is never made.
type ObjectIterator struct{}

// Next cannot be reached.
func (*ObjectIterator) Next() (*ObjectAttrs, error) { return nil, io.EOF }

// ObjectAttrs is never made.
type ObjectAttrs struct{ Name string }

// ObjectHandle is never made.
type ObjectHandle struct{}

// Generation cannot be reached.
func (*ObjectHandle) Generation(int64) *ObjectHandle { return nil }

// NewReader cannot be reached.
func (*ObjectHandle) NewReader(context.Context) (*Reader, error) { return nil, io.EOF }

// Reader is never made.
type Reader struct{ io.ReadCloser }
