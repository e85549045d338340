import { Type } from 'typebox'
import { Path, Timeout } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { createHardware } from './hardware-service.ts'

export default definePlugin({
  name: 'hardware',
  api: 1,
  description: 'The hardware of this machine: processor, memory, GPUs and their drivers',
  offers: ['hardware'],
  options: Type.Object(
    {
      sysroot: Path({
        default: '',
        needsTrust: true,
        description:
          'Root folder of a recorded machine (/proc, /sys, /etc) to describe instead of this one; empty for this machine'
      }),
      probe_timeout: Timeout({
        default: '5s',
        description: 'Time limit for each tool that detects hardware, such as nvidia-smi'
      })
    },
    { additionalProperties: false, restart: true }
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
