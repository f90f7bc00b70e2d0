package param

import "time"

// CutTime parses a time such as 2016-12-01 23:59:57.25+01:00, to the second and in UTC, and
// returns the up to 9 digits behind the point and the zone as they are written. The separator may
// be T. The zone may be Z, +01:00, +01, +00:53:28, or missing, which is UTC. There are no leap seconds.
func CutTime(text []byte) (second time.Time, fraction, zone []byte, ok bool) {
	const shape = "0000-00-00 00:00:00"
	if len(text) < len(shape) || text[4] != '-' || text[7] != '-' || text[10] != ' ' && text[10] != 'T' || text[13] != ':' || text[16] != ':' {
		return second, nil, nil, false
	}
	zone = text[len(shape):]
	if len(zone) > 0 && zone[0] == '.' {
		n := 1
		for n < len(zone) && zone[n] >= '0' && zone[n] <= '9' {
			n++
		}
		fraction, zone = zone[1:n], zone[n:]
		if n == 1 || n > 10 {
			return second, nil, nil, false
		}
	}
	offset, ok := offsetOf(zone)
	year, month, day := number(text[:4]), number(text[5:7]), number(text[8:10])
	h, m, s := number(text[11:13]), number(text[14:16]), number(text[17:19])
	if !ok || min(year, h, m, s) < 0 || month < 1 || month > 12 || day < 1 || h > 23 || m > 59 || s > 59 {
		return second, nil, nil, false
	}
	second = time.Date(year, time.Month(month), day, h, m, s, 0, time.UTC)
	// Date turns a 31st of June into another day.
	return second.Add(-offset), fraction, zone, second.Day() == day
}

// offsetOf returns the offset of a zone.
func offsetOf(zone []byte) (offset time.Duration, ok bool) {
	if len(zone) == 0 || string(zone) == "Z" {
		return 0, true
	}
	if n := len(zone); n != 3 && (n != 6 && (n != 9 || zone[6] != ':') || zone[3] != ':') || zone[0] != '+' && zone[0] != '-' {
		return 0, false
	}
	hours, minutes, seconds := number(zone[1:3]), 0, 0
	if len(zone) >= 6 {
		minutes = number(zone[4:6])
	}
	if len(zone) == 9 { // before there were time zones
		seconds = number(zone[7:])
	}
	offset = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute + time.Duration(seconds)*time.Second
	if zone[0] == '-' {
		offset = -offset
	}
	return offset, min(hours, minutes, seconds) >= 0 && hours < 24 && minutes < 60 && seconds < 60
}

// number returns the number that some digits are; -1 if they are no digits.
func number(digits []byte) int {
	n := 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}
