// Package crashtest tests what the built program keeps when it, its database or its store is
// killed, fails over or is replaced by a newer version.
package crashtest
