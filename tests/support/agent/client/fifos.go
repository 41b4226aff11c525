package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// fifos are consoles of tasks as Nomad's log collector has them: two for each task, and always read.
type fifos struct {
	directory string
	made      atomic.Int64
	read      sync.Map // path → *os.File
}

// newFIFOs are in a directory of their own, which is removed with them.
func newFIFOs() (*fifos, error) {
	directory, err := os.MkdirTemp("", "driver-client")
	return &fifos{directory: directory}, err
}

// open makes a task's FIFOs and reads them. They are open for writing as well: a reader alone would see an end at once.
func (f *fifos) open(config *drivers.TaskConfig) error {
	number := f.made.Add(1)
	config.StdoutPath = filepath.Join(f.directory, fmt.Sprintf("%d.stdout", number))
	config.StderrPath = filepath.Join(f.directory, fmt.Sprintf("%d.stderr", number))
	for _, path := range []string{config.StdoutPath, config.StderrPath} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f.read.Store(path, file)
		go func() { _, _ = io.Copy(io.Discard, file) }()
	}
	return nil
}

func (f *fifos) remove(config *drivers.TaskConfig) error {
	var problems []error
	for _, path := range []string{config.StdoutPath, config.StderrPath} {
		if file, found := f.read.LoadAndDelete(path); found {
			problems = append(problems, file.(*os.File).Close(), os.Remove(path))
		}
	}
	return errors.Join(problems...)
}

func (f *fifos) close() error {
	return os.RemoveAll(f.directory)
}
