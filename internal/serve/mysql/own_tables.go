package mysql

import (
	"context"
	"fmt"
)

// createMissing runs the statements of those tables that are not present.
func createMissing(ctx context.Context, se *session, present map[string]bool, names, statements []string) error {
	for i, name := range names {
		if present[name] {
			continue
		}
		if err := se.Exec(ctx, statements[i]); err != nil {
			return fmt.Errorf("create the table %s, or use the one that an administrator has created and granted: %w", name, err)
		}
	}
	return nil
}
