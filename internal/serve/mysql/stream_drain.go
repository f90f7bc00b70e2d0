package mysql

import (
	"context"
	"fmt"
	"strconv"
)

// spoolTable is created where it is missing when the first batch of a spool comes.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id BINARY(16) NOT NULL PRIMARY KEY,
	stream VARBINARY(255) NOT NULL,
	after BIGINT UNSIGNED NOT NULL,
	sequence BIGINT UNSIGNED NOT NULL,
	results LONGBLOB,
	updated_at DATETIME(6) NOT NULL
) ENGINE=InnoDB`

// prepareSpools creates the table of spools once: where it is there the right to create
// it is not needed.
func (st *Stream) prepareSpools(ctx context.Context, se *session) error {
	if st.drains.Load() {
		return nil
	}
	present, err := se.Query(ctx, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'spillway_spools'")
	if err != nil {
		return err
	}
	if present[0][0] != "1" {
		if err := se.Exec(ctx, spoolTable); err != nil {
			return fmt.Errorf("create the table spillway_spools: %w", err)
		}
	}
	st.drains.Store(true)
	return nil
}

// mark stores which groups of a spool the batch takes. stored reports, with the
// transaction ended, that they are stored already.
func (w *batchWriter) mark() (stored bool, err error) {
	m := w.b.Mark
	rows, err := w.se.texts(w.ctx, "SELECT after, sequence, COALESCE(results, '') FROM spillway_spools WHERE id = ? FOR UPDATE", m.Spool[:])
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		_, err := w.se.exec(w.ctx, "INSERT INTO spillway_spools (stream, after, sequence, updated_at, id) VALUES (?, ?, ?, UTC_TIMESTAMP(6), ?)",
			w.values([]byte(m.Name), int64(m.After), int64(m.Last), m.Spool[:]))
		return false, err
	}
	after, err := strconv.ParseUint(rows[0][0], 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	last, err := strconv.ParseUint(rows[0][1], 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	if stored, err = m.Compare(after, last); err != nil {
		return false, err
	}
	if stored {
		if err := w.b.SetResults([]byte(rows[0][2])); err != nil {
			return false, err
		}
		return true, w.se.Exec(w.ctx, "ROLLBACK")
	}
	_, err = w.se.exec(w.ctx, "UPDATE spillway_spools SET stream = ?, after = ?, sequence = ?, results = NULL, updated_at = UTC_TIMESTAMP(6) WHERE id = ?",
		w.values([]byte(m.Name), int64(m.After), int64(m.Last), m.Spool[:]))
	return false, err
}

// keepResults stores the Results with what tells the batch again.
func (w *batchWriter) keepResults(results []byte) error {
	if w.b.Mark != nil {
		_, err := w.se.exec(w.ctx, "UPDATE spillway_spools SET results = ? WHERE id = ?", w.values(results, w.b.Mark.Spool[:]))
		return err
	}
	_, err := w.se.exec(w.ctx, "UPDATE spillway_batches SET results = ? WHERE id = ?", w.values(results, w.b.ID[:]))
	return err
}
