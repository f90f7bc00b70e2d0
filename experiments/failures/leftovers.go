//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errLeft is wrapped by errors of what a stage leaves behind.
var errLeft = errors.New("left behind")

const (
	leftMark  = "spillway-failures-"
	leftWait  = 5 * time.Second // for processes that are ending
	leftPause = 20 * time.Millisecond
)

// leftPrefix begins the names of the folders and control groups of this process: MARK, process and "-".
func leftPrefix() string { return fmt.Sprintf("%s%d-", leftMark, os.Getpid()) }

// removeLeft removes the folders and control groups of runs that were killed. Those of a process that still exists stay.
func removeLeft() error {
	var all []error
	for _, parent := range []struct {
		dir    string
		remove func(string) error
	}{{os.TempDir(), removeFolder}, {groupParent(), removeGroup}} {
		paths, err := filepath.Glob(filepath.Join(parent.dir, leftMark+"*"))
		all = append(all, err)
		for _, path := range paths {
			owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), leftMark), "-")
			pid, err := strconv.Atoi(owner)
			if err != nil || syscall.Kill(pid, 0) != syscall.ESRCH {
				continue
			}
			all = append(all, parent.remove(path))
		}
	}
	return errors.Join(all...)
}

// removeFolder removes the folder of a stage when the processes in it have ended.
func removeFolder(dir string) error {
	var still []string
	for range leftWait / leftPause {
		if still = processesIn(dir); still == nil {
			break
		}
		time.Sleep(leftPause)
	}
	err := os.RemoveAll(dir)
	if still != nil {
		err = errors.Join(err, fmt.Errorf("processes in %s: %s", dir, strings.Join(still, ", ")))
	}
	return err
}

// processesIn returns the processes that work in a folder or below it, with their names.
func processesIn(dir string) (found []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is a constant
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && (cwd == dir || strings.HasPrefix(cwd, dir+"/")) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm")) // it may have ended
			found = append(found, strings.TrimSpace(string(name))+" "+filepath.Base(filepath.Dir(link)))
		}
	}
	slices.Sort(found)
	return found
}
