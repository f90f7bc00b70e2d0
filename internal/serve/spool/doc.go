// Package spool stores what clients send in a local SQLite file until a drain has moved it
// to a database. A client is answered when its entry is on disk.
//
// # Assumptions
//
// What the spool assumes of the machine:
//
//   - After fsync has returned, the data survives a power cut. Disks with a volatile cache
//     that ignore flush commands break this, as does a network file system that answers
//     early. On macOS the spool asks for F_FULLFSYNC.
//   - After fsync of a directory, its entries survive a power cut.
//   - A write that was not synced may be lost, in whole or in part, in any order. It does
//     not change data that was synced before.
//   - A failed fsync or write means nothing about the data: it may be on disk or not.
//   - Data may be damaged on disk later. Checksums find that; the spool has no copy to
//     mend it.
//   - flock works on the file system, and mapped memory is shared between processes.
//
// What it promises on such a machine:
//
//   - An entry that Append acknowledged is in the file until its destination has stored it,
//     or it is a dead letter in the file. A crash, a power cut, a full disk or a stop does
//     not change that.
//   - An entry whose Append failed is not in the file, unless the error wraps
//     queue.ErrUnknown.
//   - The entries of a name are drained in the order in which they were accepted.
//   - A group that is missing or damaged is never skipped: the drain of its name stops
//     there, and Ready says why.
//   - If the disk is full, entries are refused while the drain still has room to work.
//
// What it does not promise:
//
//   - The spool does not survive the loss of its disk. It is not replicated.
//   - It does not know what a destination has stored: after a crash it hands the same
//     groups over again. The destination recognizes them by queue.Mark, and so stores each
//     once.
//   - A file that was copied or put back to an older state is not recognized.
//
// # Format
//
// One file holds several names (streams), each with a random id and two numbers: the last
// group that was added, and the last that was drained. A group is a row: its sequence,
// counted per name from 1 without a gap, the time, the records in it, the payload, and a
// CRC-32C over name, sequence and payload. A payload is a version byte, the number of
// entries, and the entries. Idempotency keys of groups that wait, and dead letters, have
// tables of their own.
//
// SQLite runs in WAL mode with synchronous=FULL. A COMMIT appends the changed pages to the
// log, FILE-wal, and returns after one fsync of it. Every 1,000 pages SQLite copies them
// into FILE and syncs that before it reuses the log. After a crash it reads the log up to
// the last complete transaction; checksums exclude a torn end.
//
// One process at a time writes the file, held by a lock on FILE-lock.
//
// # Flow
//
//	append.go   Append queues an entry. One goroutine writes: what arrived during the
//	            last fsync goes into the next transaction, a group per name.
//	write.go    makes one transaction: groups, keys, deletions, dead letters
//	drain.go    Drain reads groups, hands them to a queue.Destination, and has them deleted
//	group.go    encodes and decodes groups, with their checksums
//	file.go     opens, locks and reads the file; the only code that opens it
//	inspect.go  where each name stands; what is missing or damaged
//	dead.go     dead letters: read, retry, discard
//	repair.go   copies what can be read into a new file
//	command.go  the subcommands of spillway spool
package spool
