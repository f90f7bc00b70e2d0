// Package streamtest tests streams and the spool of the built program.
package streamtest
