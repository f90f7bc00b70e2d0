// Package spool stores what clients send in a local SQLite file until a drain has moved it
// to a database. A client is answered when its entry is on disk.
//
// An entry that is acknowledged is in the file until its destination has stored it, or it is a
// dead letter in the file. An entry that was refused is not in the file, unless the error wraps
// queue.ErrUnknown. README.md says what else the spool promises, what it assumes of the machine for
// that, and how the file is built.
//
// # Flow
//
//	append.go     Begin queues an entry for a transaction
//	committer.go  one goroutine makes one transaction after the other: what arrived during the
//	              last fsync goes into the next one, a group per name
//	write.go      makes a transaction: groups, keys, deletions, dead letters
//	epoch.go      epochs of groups, and their numbers
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
