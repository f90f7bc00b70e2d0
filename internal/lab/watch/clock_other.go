//go:build !linux

package watch

import "time"

// threadCPU is not known on this system.
func threadCPU() time.Duration { return 0 }

// processCPU is not known on this system.
func processCPU(int) time.Duration { return 0 }

// bootTicks is not known on this system.
func bootTicks() uint64 { return 0 }
