// Package servetest tests `spillway serve` as its users meet it: the built program, over HTTP, on
// the databases that it supports. Its helpers are used by the packages streamtest, popuptest and
// crashtest too.
package servetest
