//go:build linux

package main

func connectionScenarios() []scenario { return nil }
func commitScenarios() []scenario     { return nil }
func readScenarios() []scenario       { return nil }
func writePage(string) error          { return nil }
