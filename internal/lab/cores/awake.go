package cores

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// latencyFile bounds how long the CPUs of this host may take to wake up, in microseconds, while it is open
// (Documentation/power/pm_qos_interface.rst of Linux).
const latencyFile = "/dev/cpu_dma_latency"

// KeepAwake keeps idle CPUs of this host from sleeping: they poll for work instead. Without sleep, a request does not wait for
// its CPU to wake up, which takes milliseconds where the hypervisor has given a sleeping CPU to another machine. The caller calls
// release; the kernel does the same when this process is gone.
func KeepAwake() (release func() error, err error) { return keepAwake(latencyFile) }

func keepAwake(file string) (release func() error, err error) {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("this host has no %s: it lets no program decide how its CPUs sleep", file)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("open %s: permission denied: run as root", file)
	case err != nil:
		return nil, fmt.Errorf("keep CPUs awake: %w", err)
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		return nil, errors.Join(fmt.Errorf("keep CPUs awake: %w", err), f.Close())
	}
	return f.Close, nil
}
