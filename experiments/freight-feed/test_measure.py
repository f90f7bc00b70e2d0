"""Tests of the arithmetic: python3 -m unittest discover -s experiments/freight-feed"""

import os
import subprocess
import sys
import unittest

import cost
import outage
import postgres
import process
import results


class ResultsTest(unittest.TestCase):
    def test_percentile_is_a_value_of_the_sample(self):
        values = list(range(1, 101))
        self.assertEqual([results.percentile(values, p) for p in (0.01, 0.5, 0.99, 1)], [1, 50, 99, 100])
        self.assertEqual(results.percentile([7], 0.99), 7)

    def test_ratios_are_paired_by_round(self):
        rounds = [
            {"round": 1, "target": "a", "v": 2}, {"round": 1, "target": "b", "v": 1},
            {"round": 2, "target": "b", "v": 5}, {"round": 2, "target": "a", "v": 20},
            {"round": 3, "target": "a", "v": 9},
        ]
        self.assertEqual(results.paired(rounds, "a", "b", lambda r: r["v"]), [2, 4])

    def test_cost_per_request(self):
        r = {"requests": 1_000_000, "cpu_user_seconds": 2.0, "cpu_sys_seconds": 6.5}
        self.assertAlmostEqual(cost.micros(r), 8.5)
        self.assertAlmostEqual(cost.micros(r, "sys"), 6.5)


class PostgresTest(unittest.TestCase):
    def test_difference_leaves_out_what_did_not_run(self):
        self.assertEqual(postgres.difference({"a": 1, "b": 2}, {"a": 1, "b": 5, "c": 1}), {"b": 3, "c": 1})

    def test_password_is_not_kept(self):
        self.assertEqual(postgres.without_password("postgres://me:secret@db:5432/freight?sslmode=off"), "postgres://db/freight")


class ProcessTest(unittest.TestCase):
    def test_cpu_counts_children_alive_and_ended(self):
        before = process.cpu(os.getpid())
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", burn], check=True)
        alive = subprocess.Popen([sys.executable, "-c", burn + "\nprint(flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE)
        alive.stdout.readline()
        spent = process.cpu(os.getpid()) - before
        alive.kill()
        alive.wait()
        alive.stdout.close()
        self.assertGreater(spent.total, 0.55)
        self.assertLess(spent.total, 2)


class OutageTest(unittest.TestCase):
    def document(self, runs, ages):
        return {
            "events_seconds": {"stopped": 5.0, "down": 5.2, "starting": 35.0, "up": 36.0}, "runs": runs, "alive": True,
            "manifest": {"settings": {"stale_max": 10}}, "seconds": [{"second": s, "age_max": a} for s, a in ages],
        }

    def test_checks(self):
        ages = [(4, 0)] + [(s, s - 5) for s in range(6, 15)] + [(20, None), (37, 0)]
        runs = [[200, 0, 14.9], [503, 15.0, 36.0], [200, 36.1, 40]]
        self.assertTrue(all(outage.checks(self.document(runs, ages)).values()))
        self.assertFalse(all(outage.checks(self.document(runs[:2], ages)).values()), "no 200 at the end")
        still = [(s, 1) for s in range(6, 15)]
        self.assertFalse(all(outage.checks(self.document(runs, still)).values()), "Age stands still")


if __name__ == "__main__":
    unittest.main()
