"""The program in plugins/machines/ray, without Ray."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, sys.argv.pop(1))
import ray_decisions  # noqa: E402
import ray_processes  # noqa: E402
import ray_supervisor  # noqa: E402


def nodes(*ids):
    return {id: {"name": f"name-{id}", "address": f"10.0.0.{index}"} for index, id in enumerate(ids)}


class Decisions(unittest.TestCase):
    def follow(self, *steps):
        """Each step is (ids of the nodes, how many members are wanted); gives who has a member after each."""
        marks, seen = {}, []
        for ids, wanted in steps:
            marks, active = ray_decisions.decide(nodes(*ids), marks, wanted)
            seen.append("".join(active))
        return seen

    def test_every_node_has_a_member_whatever_is_wanted(self):
        self.assertEqual(self.follow(("ab", None), ("abc", None), ("ac", None)), ["ab", "abc", "ac"])
        self.assertEqual(self.follow(("abc", 1), ("abc", 0)), ["abc", "abc"], "nobody asked for these machines")

    def test_what_was_asked_for_is_given_back(self):
        self.assertEqual(self.follow(("a", 3), ("abc", 3), ("abc", 2), ("abc", 1)), ["a", "abc", "ab", "a"])
        self.assertEqual(self.follow(("a", 2), ("abc", 2), ("abc", 1))[-1], "ac", "c came without being asked for")
        self.assertEqual(self.follow(("a", 3), ("abc", 3), ("abc", 0))[-1], "a", "a was there before")

    def test_what_a_person_has_joined_is_not_given_back(self):
        marks, _ = ray_decisions.decide(nodes(*"a"), {}, 2)
        more = nodes(*"ab")
        more["b"]["joined"] = True
        marks, _ = ray_decisions.decide(more, marks, 2)
        self.assertEqual(ray_decisions.decide(more, marks, 0)[1], ["a", "b"])

    def test_nothing_is_given_back_while_nobody_says_what_is_wanted(self):
        self.assertEqual(self.follow(("a", 3), ("abc", 3), ("abc", None))[-1], "abc")

    def test_what_is_wanted_again_is_taken_back_before_it_has_gone(self):
        self.assertEqual(self.follow(("a", 3), ("abc", 3), ("abc", 1), ("abc", 2), ("abc", 5))[2:], ["a", "ab", "abc"])

    def test_a_machine_that_has_gone_is_forgotten(self):
        marks, _ = ray_decisions.decide(nodes(*"a"), {}, 2)
        marks, _ = ray_decisions.decide(nodes(*"ab"), marks, 2)
        marks, active = ray_decisions.decide(nodes(*"ab"), marks, 1)
        self.assertEqual((marks["released"], active), (["b"], ["a"]))
        marks, active = ray_decisions.decide(nodes(*"a"), marks, 1)
        self.assertEqual((marks["released"], marks["asked"], active), ([], [], ["a"]))

    def test_the_wants_of_several_fronts(self):
        wants = ray_decisions.Wants()
        said = {"one": {"members": 2, "beat": "1"}, "two": {"members": 5, "beat": "1"}}
        self.assertIsNone(wants.total({}, 0))
        self.assertEqual(wants.total(said, 0), 5)
        said["one"]["beat"] = "2"
        self.assertEqual(wants.total(said, 300), 5)
        self.assertEqual(wants.total(said, ray_decisions.WANT_ENDS + 1), 2, "two has been silent for too long")
        self.assertEqual(wants.total(said, 10 * ray_decisions.WANT_ENDS), 0)

    def test_names_are_unique(self):
        alike = {"x": {"name": "gpu", "address": "10.0.0.1"}, "y": {"name": "gpu", "address": "10.0.0.2"}}
        self.assertEqual(ray_decisions.member_names(alike), {"x": "gpu-10.0.0.1", "y": "gpu-10.0.0.2"})
        self.assertEqual(ray_decisions.member_names(nodes(*"a")), {"a": "name-a"})

    def test_the_table_has_who_was_reachable_once(self):
        up = {"name": "b", "url": "http://b", "key": "k", "state": "restarting"}
        records = {"1": up, "2": {"name": "a", "state": "starting"}, "3": {**up, "name": "c"}}
        self.assertEqual(ray_decisions.table_of(records, {"1", "2"}), [{"name": "b", "url": "http://b", "key": "k"}])

    def test_restarts_wait_longer_and_longer_unless_it_ran_well(self):
        waits = [0.0]
        for _ in range(8):
            waits.append(ray_decisions.next_wait(waits[-1], ran=1))
        self.assertEqual(waits[1:4], [0.2, 0.4, 0.8])
        self.assertEqual(waits[-1], ray_decisions.MAX_WAIT)
        self.assertEqual(ray_decisions.next_wait(10, ran=ray_decisions.GOOD_RUN), ray_decisions.FIRST_WAIT)

    def test_a_corral_gets_nothing_of_ray(self):
        ray = "/v/site-packages/ray/core/libjemalloc.so"
        given = {"PATH": "/bin", "RAY_AUTH_TOKEN": "x", "PYTHONPATH": "y", "CORRAL_HOME": "z", "LD_PRELOAD": ray}
        self.assertEqual(ray_decisions.corral_environment(given), {"PATH": "/bin"})
        both = {"LD_PRELOAD": f"{ray}:/lib/mine.so"}
        self.assertEqual(ray_decisions.corral_environment(both), {"LD_PRELOAD": "/lib/mine.so"})

    def test_where_corral_is(self):
        self.assertEqual(ray_supervisor.find_command([sys.executable], "/nowhere"), [sys.executable])
        with self.assertRaisesRegex(ray_decisions.Mistake, "/no/node does not exist, and there is no corral on the PATH"):
            ray_supervisor.find_command(["/no/node"], "/nowhere")


def state(pid):
    """Of a process as the system says it; Z where it has ended, None where it is gone."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    return None


@unittest.skipUnless(sys.platform == "linux", "Ray's clusters are for Linux")
class Processes(unittest.TestCase):
    def until_gone(self, pid):
        limit = time.monotonic() + 30
        while state(pid) not in (None, "Z", "X"):
            self.assertLess(time.monotonic(), limit, "it is still there")
            time.sleep(0.02)

    def test_a_program_dies_with_its_supervisor(self):
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import ray_supervisor, signal\n"
            "print(ray_supervisor.start_bound(['/bin/sleep', '300']).pid, flush=True)\n"
            "signal.pause()"
        )
        folder = os.path.dirname(ray_supervisor.__file__)
        supervisor = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE)
        with supervisor:
            pid = int(supervisor.stdout.readline())
            self.assertNotIn(state(pid), (None, "Z"))
            supervisor.send_signal(signal.SIGKILL)
        self.until_gone(pid)

    def test_processes_are_found_by_their_files_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/a")
            os.mkdir(f"{folder}/ab")
            children = {}
            for name in ("a", "ab"):
                with open(f"{folder}/{name}/log", "w") as log:
                    children[name] = subprocess.Popen(["/bin/sleep", "300"], stdout=log)
            self.assertEqual(ray_processes.processes_of(f"{folder}/a"), [children["a"].pid])
            ray_processes.end_processes(f"{folder}/a")
            self.assertEqual(children["a"].wait(30), -signal.SIGKILL)
            self.assertIsNone(children["ab"].poll(), "one with a longer name is another one's")
            children["ab"].kill()
            children["ab"].wait()


if __name__ == "__main__":
    unittest.main()
