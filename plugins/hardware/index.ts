import { Type } from 'typebox'
import { Path, Timeout } from '../../core/config/core-schema.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createHardware } from './hardware-service.ts'

export default definePlugin({
  name: 'hardware',
  api: 1,
  description: 'What this machine has: processor, memory, GPUs and their drivers',
  offers: ['hardware'],
  options: Type.Object(
    {
      sysroot: Path({
        default: '',
        description:
          'Folder before all system files (/proc, /sys, /etc), for recordings of other machines; empty is this one'
      }),
      probe_timeout: Timeout({
        default: '5s',
        description: 'Time that each source of facts on the hardware has, such as nvidia-smi'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const hardware = createHardware({
      sysroot: options.sysroot,
      probeTimeout: parseDuration(options.probe_timeout)!,
      env: process.env,
      signal: context.signal,
      log: context.log
    })
    return { services: { hardware } }
  }
})
