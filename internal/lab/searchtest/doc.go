// Package searchtest tests the commands of the lab that choose what to measure: peak and
// experiment. It runs the built program. On a machine with other work a probe or a trial may be
// anything but VALID, so the tests assert what holds whatever the verdict.
package searchtest
