package apptest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// galeraNodes is the number of nodes of a GaleraCluster. A majority of them must run.
const galeraNodes = 3

// GaleraCluster is a MariaDB Galera cluster. Each of its nodes can be stopped, killed and
// started again while the others run.
type GaleraCluster struct{ Nodes []*Server }

// Galera starts a cluster of three nodes on loopback for the duration of a test. Settings
// are those of MariaDB, for each node.
func Galera(t testing.TB, settings ...string) *GaleraCluster {
	t.Helper()
	c, err := startGalera(settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes {
		node.closeAfter(t)
	}
	return c
}

func startGalera(settings []string) (c *GaleraCluster, err error) {
	c = &GaleraCluster{}
	defer func() {
		if err != nil {
			for _, node := range c.Nodes {
				err = errors.Join(err, node.Close())
			}
		}
	}()
	install, err := findBinary("mariadb-install-db", "mariadb-server")
	if err != nil {
		return c, err
	}
	provider, err := findBinary("libgalera_smm.so", "galera-4", "/usr/lib/galera/libgalera_smm.so", "/usr/lib*/galera*/libgalera_smm.so")
	if err != nil {
		return c, err
	}
	credential, err := unprivileged("mysql")
	if err != nil {
		return c, fmt.Errorf("find the user that runs MariaDB: %w", err)
	}
	var members []string // the addresses of the nodes for each other
	for range galeraNodes {
		addr, err := FreeAddr()
		if err != nil {
			return c, err
		}
		members = append(members, addr)
	}
	for i := range members {
		node := &Server{name: "mariadbd", scheme: "mysql://root@", credential: credential, stopSignal: syscall.SIGTERM}
		node.ready = node.pingMySQL
		prepare := func() error {
			if err := node.galeraArgs(provider, members, i, settings); err != nil {
				return err
			}
			if i == 0 {
				return node.installMariaDB(install)
			}
			return node.cloneData(c.Nodes[0])
		}
		if err := node.setUp("mariadb-server", "/usr/sbin/mariadbd", prepare); err != nil {
			return c, fmt.Errorf("start node %d: %w", i+1, err)
		}
		c.Nodes = append(c.Nodes, node)
		if i == 0 {
			if err := node.keepState(); err != nil {
				return c, err
			}
		}
		node.joinAgain()
	}
	return c, nil
}

// newCluster has a node create the cluster.
const newCluster = "--wsrep-new-cluster"

// galeraArgs sets the arguments of a node for its first start. The first node creates the
// cluster.
func (s *Server) galeraArgs(provider string, members []string, number int, settings []string) error {
	transfer, err := FreeAddr()
	if err != nil {
		return err
	}
	copies, err := FreeAddr()
	if err != nil {
		return err
	}
	options := []string{
		"gmcast.listen_addr=tcp://" + members[number], "ist.recv_addr=" + transfer, "gcache.size=64M",
		"evs.keepalive_period=PT0.3S", "evs.inactive_check_period=PT0.3S", "evs.suspect_timeout=PT2S", "evs.inactive_timeout=PT6S",
	}
	cluster := "gcomm://" + strings.Join(members, ",")
	if number == 0 {
		s.args = []string{newCluster}
	}
	s.args = append(s.mariaDBArgs(), append(s.args,
		"--wsrep-on=ON", "--wsrep-provider="+provider, "--wsrep-cluster-address="+cluster, "--wsrep-provider-options="+strings.Join(options, ";"),
		"--wsrep-node-address=127.0.0.1", "--wsrep-node-name="+fmt.Sprint("node", number+1), "--wsrep-sst-method=rsync",
		"--wsrep-sst-receive-address="+copies,
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2")...)
	for _, setting := range settings {
		if !strings.HasPrefix(setting, "--default-storage-engine=") { // only InnoDB is replicated
			s.args = append(s.args, setting)
		}
	}
	return nil
}

// keepState restarts the first node of a cluster, and keeps a copy of its data directory in
// between. With the copy, other nodes need only the transactions since.
func (s *Server) keepState() error {
	if err := s.Stop(); err != nil {
		return err
	}
	if output, err := exec.Command("cp", "-a", s.dataDir(), s.stateDir()).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data of the first node: %w\n%s", err, output)
	}
	return s.Start()
}

func (s *Server) stateDir() string { return filepath.Join(s.dir, "state") }

// cloneData starts a node with the data that keepState has copied.
func (s *Server) cloneData(first *Server) error {
	if output, err := exec.Command("cp", "-a", first.stateDir(), s.dataDir()).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data of the first node: %w\n%s", err, output)
	}
	for _, own := range []string{"galera.cache", "gvwstate.dat"} {
		if err := os.Remove(filepath.Join(s.dataDir(), own)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	position, err := s.galeraPosition(s.args)
	s.args = append(s.args, startPosition+position)
	return err
}

const startPosition = "--wsrep-start-position="

// joinAgain has the next starts of a node join the cluster of the others.
func (s *Server) joinAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var args []string
	for _, arg := range s.args {
		if arg != newCluster && !strings.HasPrefix(arg, startPosition) {
			args = append(args, arg)
		}
	}
	s.recover = func() error {
		position, err := s.galeraPosition(args)
		if err != nil {
			return err
		}
		s.args = append(args[:len(args):len(args)], startPosition+position)
		return nil
	}
}

var recoveredPosition = regexp.MustCompile(`WSREP: Recovered position: (\S+)`)

// galeraPosition returns the last transaction of a node that is not running. With it, the
// others send the node only what it lacks.
func (s *Server) galeraPosition(args []string) (string, error) {
	cmd := exec.Command(s.binary, append(args[:len(args):len(args)], "--wsrep-recover")...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential}
	output, err := cmd.CombinedOutput()
	found := recoveredPosition.FindAllSubmatch(output, -1)
	if len(found) == 0 {
		return "", fmt.Errorf("recover the position of the node: %w\n%s", err, bytes.TrimSpace(output))
	}
	return string(found[len(found)-1][1]), nil
}
