package peak

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a command of a knob.
const (
	commandLimit = time.Minute     // until it has returned
	commandGrace = 5 * time.Second // between the signals TERM and KILL
	outputShown  = 400             // bytes of its last output, in an error
)

// set runs the command of a knob with the value and waits for its end. The command has a process group of its own, so that
// Ctrl-C does not reach it; the group is ended with ctx and after a time limit. What a successful command leaves running is left
// alone: it may be the service. The error has the end of the output.
func set(ctx context.Context, command, value string) error {
	limited, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "VALUE="+value)
	output, err := os.CreateTemp("", "spillway-knob-") // a file, because a pipe would wait for everything that is left running
	name := ""
	if err == nil { // on a full disk, a value is set back all the same
		defer os.Remove(output.Name())
		defer output.Close()
		name, cmd.Stdout, cmd.Stderr = output.Name(), output, output
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = commandGrace
	err = cmd.Run()
	if limited.Err() != nil && cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what ignored the first signal; all may have ended
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		err = fmt.Errorf("it did not return within %s", commandLimit)
	}
	if text := lastOutput(name); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// lastOutput returns the end of a file as one line.
func lastOutput(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	text = bytes.TrimSpace(text)
	return strings.Join(strings.Fields(string(text[max(0, len(text)-outputShown):])), " ")
}

// quoted returns the text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
