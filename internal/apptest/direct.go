package apptest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// EvalRedis runs a script on Redis and returns the answer, one line.
func EvalRedis(t *testing.T, addr, script string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "EVAL \"%s\" 0\r\n", script); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// SignalServer sends a signal to all processes of a server.
func SignalServer(t *testing.T, server *PostgresServer, signal syscall.Signal) {
	t.Helper()
	pids := []int{server.PID()}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", server.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	if signal == syscall.SIGSTOP {
		t.Cleanup(func() { _ = syscall.Kill(-server.PID(), syscall.SIGCONT) }) // so that it can be stopped
	}
}
