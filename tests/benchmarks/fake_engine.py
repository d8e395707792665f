# SPDX-License-Identifier: Apache-2.0
"""An engine that does what its prompt says."""

import os
import time

from benchmarks.compare.runners.protocol import TokenClock, serve

FAIL, HANG, DIE = 1, 2, 3


class FakeEngine:
    def __init__(self, options):
        if options.get("broken"):
            raise RuntimeError("no such model")
        self.about = {"fake": options["version"]}

    def generate(self, prompts, new_tokens):
        print("a line that is no answer")
        clock = TokenClock(len(prompts))
        if prompts == [[FAIL]]:
            raise ValueError("bad prompt")
        if prompts == [[HANG]]:
            time.sleep(60)
        if prompts == [[DIE]]:
            os._exit(3)
        return clock.finish([new_tokens] * len(prompts), new_tokens)


if __name__ == "__main__":
    serve(FakeEngine)
