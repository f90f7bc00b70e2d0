// Package servetest tests `spillway serve` as its users meet it: the built program, over HTTP, on
// the databases that it supports.
package servetest
