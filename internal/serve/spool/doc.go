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
//   - A write that was not synced may be lost, in whole or in part, in any order. What it
//     writes may even be garbage after a power cut. It does not change bytes around it that
//     were synced before: a disk that spoils a sector of 512 or 4,096 bytes of which a part
//     was being written breaks this.
//   - Names in a directory that was not synced may each be old or new. A rename is done or
//     not done.
//   - A failed fsync or write means nothing about the data: it may be on disk or not.
//   - Data may be damaged on disk later. Checksums find that; the spool has no copy to
//     mend it.
//   - flock works on the file system, and mapped memory is shared between processes.
//   - Random numbers differ between two opens of a file, also on two copies of a machine.
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
//   - A name that is not drained fills its share (Config.Shares). It leaves the others their
//     shares.
//   - A group keeps the epoch of the open that wrote it, its number there, and a sum of its
//     content. Two copies of a file write in different epochs, and so does a file that was
//     put back to an older state. A destination that keeps queue.Mark by epoch stores what
//     any of them has acknowledged, each group once. If it has the number but another
//     content, it cannot know: dead letters in doubt, which Retry leaves unless it is told.
//
// What it does not promise:
//
//   - The spool does not survive the loss of its disk. It is not replicated.
//   - It does not know what a destination has stored: after a crash it hands the same
//     groups over again. The destination recognizes them by queue.Mark, and so stores each
//     once.
//   - What a file had acknowledged after the copy that it was put back to is lost, unless
//     it was drained. The database then is ahead of Group.EpochLast.
//   - If an fsync has failed and the process has ended before the next one, a power cut while
//     the next Open copies the log into the file may damage groups.
//   - Dead letters have no epoch: those that were copied with the file are stored twice if
//     both copies are told to retry them.
//
// # Format
//
// One file holds several names (streams), each with a random id and two numbers: the last
// group that was added, and the last that was drained. A group is a row: its sequence,
// counted per name from 1 without a gap, the time, the records in it, the payload, and a
// CRC-32C over name, sequence and payload. A payload is a version byte, the epoch, the
// number in the epoch, the number of entries, and the entries. The groups of an epoch are
// adjacent: its row has the sequence of the first. Idempotency keys of groups that wait,
// dead letters, and the clocks of the databases have tables of their own.
//
// The file's user_version is 1. A file of another version is refused, for reading too.
//
// SQLite runs in WAL mode with synchronous=FULL. A COMMIT appends the changed pages to the
// log, FILE-wal, and returns after one fsync of it. Every 1,000 pages SQLite copies them
// into FILE and syncs that before it reuses the log. After a crash it reads the log up to
// the last complete transaction; checksums exclude a torn end. Open copies what it has read
// into FILE and syncs it before anything is answered or drained, because the fsync of the last
// transactions may not have been made, or may have failed.
//
// One process at a time writes the file, held by a lock on FILE-lock, which has its number and
// its admin listener. Another process asks it there to have dead letters retried, discarded or
// moved.
//
// Groups that were given to another name keep their own, whose row has the other one.
//
// # Flow
//
//	append.go     Append queues an entry, and waits for its transaction
//	committer.go  one goroutine makes one transaction after the other: what arrived during the
//	              last fsync goes into the next one, a group per name
//	write.go      makes a transaction: groups, keys, deletions, dead letters
//	epoch.go      epochs of groups, and their numbers
//	clock.go      how far the databases' clocks are ahead
//	drain.go      Drain reads groups, hands them to a queue.Destination, and has them deleted
//	group.go      encodes and decodes groups, with their checksums
//	file.go       opens, locks and reads the file; the only code that opens it
//	schema.go     the tables of the file, and their version
//	inspect.go    where each name stands; what is missing or damaged
//	dead.go       dead letters: filter and read
//	order.go      retries, discards and moves them
//	repair.go     copies what can be read into a new file
//	command.go    the subcommands of spillway spool
package spool
