// Package crashtest tests what the built program keeps when it, its database or its store is
// killed or fails over.
package crashtest
