// Package labtest tests the commands of the lab that measure and report: load, watch,
// plan, report, diagnose and doctor. It runs the built program. On a machine with other work a
// step may be anything but VALID, so the tests assert what holds whatever the verdict, and that
// the exit code is the one that the verdict explains.
package labtest
