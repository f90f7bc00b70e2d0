package mysql

import (
	"fmt"
	"strconv"
)

// spoolTable is created where it is missing when a batch of a spool comes.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id BINARY(16) NOT NULL PRIMARY KEY,
	stream VARBINARY(255) NOT NULL,
	after BIGINT UNSIGNED NOT NULL,
	sequence BIGINT UNSIGNED NOT NULL,
	results LONGBLOB,
	updated_at DATETIME(6) NOT NULL
) ENGINE=InnoDB`

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
	if stored, err = m.Meet(after, last); err != nil {
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
