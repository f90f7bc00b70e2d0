package main

import (
	"regexp"
	"strconv"
	"testing"
)

// exposureMax is the highest exposure of the unit by systemd-analyze, from 0 to 10.
const exposureMax = 2.5

// The unit has no mistakes, and gives the process little that it could misuse.
func TestUnit(t *testing.T) {
	const dir = repository + "/deploy/systemd"
	out := run(t, dir, "systemd-analyze", "security", "--offline=true", "--no-pager", "./spillway.service")
	found := regexp.MustCompile(`Overall exposure level for spillway.service: ([0-9.]+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("systemd-analyze says\n%s", out)
	}
	if exposure, err := strconv.ParseFloat(found[1], 64); err != nil || exposure > exposureMax {
		t.Errorf("the exposure is %s, more than %v: %v\n%s", found[1], exposureMax, err, out)
	}
}
