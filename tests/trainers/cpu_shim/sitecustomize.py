"""Test only: lets an unmodified GPU project run on a machine without a GPU, over gloo.

Python imports a module of this name at start when its folder is on PYTHONPATH, so nothing in the generated files
changes. It does nothing unless one of these is set:

RECIPEGEN_TEST_CPU           single, ddp, sharded (FSDP2) or deepspeed: apply the patches of `cpu_patches.PATCHES`
RECIPEGEN_TEST_ADAPTER_SEED  a number: seed before an adapter is created (Axolotl seeds after it, so that two runs of
                             one recipe start from different adapters)
RECIPEGEN_TEST_REPORT        a folder: `probe` writes there what really ran (observation only)
"""

import os

if any(name.startswith("RECIPEGEN_TEST_") for name in os.environ):
    import cpu_patches
    import import_hook
    import probe

    cpu_patches.set_environment(os.environ)
    import_hook.install(cpu_patches.active(os.environ) + probe.active(os.environ))
