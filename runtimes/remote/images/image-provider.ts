import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { EngineProvider, OperationCall } from '../../../core/contracts/engines.ts'
import type { HardwareService } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { requireFiles } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { SharedWork } from '../../../core/system/shared-work.ts'
import { findServer, type ServerProgram } from '../find-server.ts'
import { createProgramProvider } from '../programs/program-provider.ts'
import { readProgram } from '../programs/program-settings.ts'
import SOURCE from './packages/image-server-source.json' with { type: 'json' }

/** Archives of releases with the server for the processor. */
const ARCHIVES: Partial<Record<string, RegExp>> = {
  'linux x64': /-bin-Linux-Ubuntu-[\d.]+-x86_64\.zip$/,
  'darwin arm64': /-bin-Darwin-macOS-[\d.]+-arm64\.zip$/,
  'win32 x64': /-bin-win-(avx2|cpu)-x64\.zip$/
}

const SERVER: ServerProgram = {
  title: 'stable-diffusion.cpp',
  executable: 'sd-server',
  setting: 'images.image_server',
  repository: 'leejet/stable-diffusion.cpp',
  archive: ARCHIVES[`${process.platform} ${process.arch}`],
  source: SOURCE,
  settings: { SD_BUILD_EXAMPLES: 'ON', SD_SERVER_BUILD_FRONTEND: 'OFF' }
}

/** It makes one image after another. */
const DRAWER = {
  ...readProgram('stable-diffusion.cpp', {
    command: 'sd-server {port}',
    kind: 'draw',
    ready: '/v1/models',
    parallel: 1
  }),
  advice: 'Name another version with images.image_server.'
}
const ARGUMENTS = ['--listen-ip', '127.0.0.1', '--listen-port', '{port}', '--model', '{model}']
/** In its prompts, the server reads its own parameters, such as a number of steps, which clients must not decide. */
const PARAMETERS = /<(?=\/?sd_cpp_extra_args>)/gi

/** Serves image models in storage with the server of stable-diffusion.cpp. */
export function createImageProvider({
  options,
  directory,
  hardware,
  log
}: {
  options: { image_server: string; steps: number; release_api: string; release_mirror: string }
  /** Folder for the installed server. */
  directory: string
  hardware: HardwareService
  log: FastifyBaseLogger
}): EngineProvider {
  const searches = new SharedWork<string>()
  const places = { named: options.image_server, release: options, directory, env: process.env, log }
  const search = (waiting: Waiting) => searches.run('sd-server', waiting, shared => findServer(SERVER, places, shared))
  const steps = options.steps > 0 ? ['--steps', `${options.steps}`] : []
  const provider = createProgramProvider(
    variant => {
      const { directory, files } = requireFiles(variant)
      return {
        program: DRAWER,
        model: join(directory, files.find(({ role }) => role === 'model')!.path),
        own: {
          command: async waiting => [await search(waiting), ...ARGUMENTS, ...steps],
          operations: (_, { draw, edit_image }) => ({ draw: plain(draw!), edit_image: plain(edit_image!) })
        }
      }
    },
    { hardware, log, name: 'images' }
  )
  return {
    ...provider,
    async close() {
      await searches.end(() => true, new CorralError('shutting_down', 'corral is shutting down.'))
      await provider.close?.()
    }
  }
}

/** The call with the prompt as plain text. */
const plain =
  (call: OperationCall): OperationCall =>
  (request, sink) =>
    call({ ...request, prompt: String(request.prompt).replace(PARAMETERS, ' ') }, sink)
