package sqlite

import (
	"context"
	"fmt"
	"os"
	"syscall"
)

// Identity returns what identifies the file on this machine. A file that replaces it has another
// identity, unless it is given the same inode.
func (db *DB) Identity(context.Context) (string, error) {
	file, err := os.Stat(db.file)
	if err != nil {
		return "", fmt.Errorf("read the identity of the database: %w", err)
	}
	if stat, ok := file.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d/%d", stat.Dev, stat.Ino), nil
	}
	return "", nil
}

// Logins returns 0: a file has no users.
func (db *DB) Logins() uint64 { return 0 }
