package apptest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// ReplicaSettings are the settings that a primary needs for Replica.
func ReplicaSettings() []string { return []string{"wal_level=replica", "max_wal_senders=4"} }

// Replica starts a streaming replica of pg for the duration of a test. pg must have been
// started with ReplicaSettings.
func (pg *PostgresServer) Replica(t testing.TB) *PostgresServer {
	t.Helper()
	replica, err := pg.startReplica()
	if err != nil {
		t.Fatal(err)
	}
	replica.closeAfter(t)
	return replica
}

func (pg *PostgresServer) startReplica() (*PostgresServer, error) {
	replica := &PostgresServer{Server: &Server{
		name: "postgres", scheme: pg.scheme, query: pg.query, credential: pg.credential, stopSignal: pg.stopSignal,
	}}
	replica.ready = func(ctx context.Context) error { return pingPostgres(ctx, replica.URL("postgres")) }
	return replica, replica.setUp("postgresql", postgresBinaries+"postgres", func() error {
		replica.binary = pg.binary // in initdb's directory, not a wrapper
		data := filepath.Join(replica.dir, "data")
		replica.release = func() { releaseMemory(data) }
		host, port, err := net.SplitHostPort(pg.addr)
		if err != nil {
			return err
		}
		backup := exec.Command(filepath.Join(filepath.Dir(pg.binary), "pg_basebackup"), "--pgdata="+data, "--host="+host, "--port="+port,
			"--username=postgres", "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
		backup.Dir = replica.dir
		backup.SysProcAttr = &syscall.SysProcAttr{Credential: pg.credential}
		if output, err := backup.CombinedOutput(); err != nil {
			return fmt.Errorf("pg_basebackup: %w\n%s", err, output)
		}
		replica.args = postgresArgs(data, replica.dir, replica.addr,
			append(ReplicaSettings(), "max_connections=200", "wal_retrieve_retry_interval=200ms"))
		return nil
	})
}
