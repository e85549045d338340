import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { EngineProvider } from '../../../core/contracts/engines.ts'
import type { HardwareService } from '../../../core/contracts/hardware.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { requireFiles } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { SharedWork } from '../../../core/system/shared-work.ts'
import { findServer } from '../find-server.ts'
import { createProgramProvider } from '../programs/program-provider.ts'
import { type ProgramModel, readProgram } from '../programs/program-settings.ts'
import { findPiper } from './find-piper.ts'
import { PIPER_ARGUMENTS, piperCalls } from './piper.ts'
import type { SpeechOptions } from './speech-options.ts'
import { WHISPER } from './whisper-program.ts'
import { WHISPER_ARGUMENTS, whisperCalls } from './whisper-server.ts'

/** The server of whisper.cpp answers one request after another. */
const RECOGNIZER = {
  ...readProgram('whisper.cpp', { command: 'whisper-server {port}', kind: 'transcribe', parallel: 1 }),
  advice: 'Name another version with speech.whisper_server.'
}
const SPEAKER = {
  ...readProgram('piper', { command: 'python {port}', kind: 'transcribe', ready: '/voices', base: '', parallel: 2 }),
  advice: 'Name another Python with piper in speech.python.'
}

/** Serves the models for speech in storage with whisper.cpp's server and with piper. */
export function createSpeechProvider(deps: {
  options: SpeechOptions
  /** The data directory. */
  home: string
  hardware: HardwareService
  log: FastifyBaseLogger
}): EngineProvider {
  const searches = new SharedWork<string>()
  const { home, options, log } = deps
  const common = { env: process.env, log }
  const whisper = (waiting: Waiting) =>
    searches.run('whisper', waiting, shared => {
      const where = { named: options.whisper_server, release: options, directory: join(home, 'speech') }
      return findServer(WHISPER, { ...common, ...where }, shared)
    })
  const piper = (waiting: Waiting) =>
    searches.run('piper', waiting, shared => {
      const where = { named: options.python, packageIndex: options.package_index, directory: join(home, 'python') }
      return findPiper({ ...common, ...where }, shared)
    })

  function find(variant: Model): ProgramModel {
    const model = requireFiles(variant)
    const path = join(model.directory, model.files.find(({ role }) => role === 'model')!.path)
    if (model.format === 'onnx') {
      const command = async (waiting: Waiting) => [await piper(waiting), ...PIPER_ARGUMENTS]
      return { program: SPEAKER, model: path, own: { command, operations: ask => piperCalls(ask, model) } }
    }
    const command = async (waiting: Waiting) => [await whisper(waiting), ...WHISPER_ARGUMENTS]
    return { program: RECOGNIZER, model: path, own: { command, operations: (_, usual) => whisperCalls(usual) } }
  }

  const provider = createProgramProvider(find, { ...deps, name: 'speech' })
  return {
    ...provider,
    async close() {
      await searches.end(() => true, new CorralError('shutting_down', 'corral is shutting down.'))
      await provider.close?.()
    }
  }
}
