import { readFile, writeFile } from 'node:fs/promises'
import { extname } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { errorMessage } from '../../core/errors.ts'
import { CommandFailure, EXIT, failure, misuse } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options } from '../context.ts'
import { printable, printText } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

type TranscribeOptions = Options<'translate', 'model' | 'language'> & { format: string }

export async function transcribe(context: CommandContext, path: string, options: TranscribeOptions): Promise<void> {
  const { translate = false, language, format: response_format, model } = options
  const audio = await readFile(path).catch(error => {
    throw failure(`${path} cannot be read: ${errorMessage(error)}.`, error)
  })
  await withServer(context, 'usual', async ({ client }) => {
    const body = {
      model: await speechModel(client, translate ? 'translate' : 'transcribe', model),
      file: audio.toString('base64'),
      ...(language !== undefined && { language }),
      response_format,
      ...(response_format === 'verbose_json' && { timestamp_granularities: ['segment', 'word'] })
    }
    const route = `/v1/audio/${translate ? 'translations' : 'transcriptions'}`
    const waiting = await showProgress(`transcribing ${path}`, { plain: 'nothing' })
    const pieces = await client.bytes(route, body, reply => reply.toArray()).finally(() => waiting.clear())
    printText(printable(Buffer.concat(pieces).toString().trimEnd()))
  })
}

type SayOptions = Options<never, 'model' | 'voice' | 'speed' | 'output'>

export async function say(context: CommandContext, words: string[], options: SayOptions): Promise<void> {
  const { stdin, stdout } = process
  const { model, voice, speed, output } = options
  const response_format = output === undefined ? 'wav' : extname(output).slice(1).toLowerCase()
  if (!['wav', 'mp3', 'opus', 'flac', 'pcm'].includes(response_format) || (output === undefined && stdout.isTTY)) {
    throw misuse('Add -o and the name of a sound file that ends with .wav, .mp3, .opus, .flac or .pcm.')
  }
  const input = words.length > 0 || stdin.isTTY ? words.join(' ') : (await stdin.setEncoding('utf8').toArray()).join('')
  if (input.trim() === '') throw misuse('There is no text. Add one, or pipe one in.')
  await withServer(context, 'usual', async ({ client }) => {
    const asked = { input, response_format, voice, speed: speed === undefined ? undefined : Number(speed) }
    const body = { model: await speechModel(client, 'speak', model), ...asked }
    await client.bytes('/v1/audio/speech', body, async sound => {
      if (output === undefined) return await pipeline(sound, stdout, { end: false })
      const bytes: Buffer = Buffer.concat(await sound.toArray())
      // The length was not known yet when the stream began.
      if (response_format === 'wav') {
        bytes.writeUInt32LE(bytes.length - 8, 4)
        bytes.writeUInt32LE(bytes.length - 44, 40)
      }
      await writeFile(output, bytes)
    })
  })
}

/** Returns the named model, or the first one with this ability. */
async function speechModel(client: ServerClient, ability: string, named: string | undefined): Promise<string> {
  if (named !== undefined) return modelArgument(named)
  type Listed = { models: { name: string; capabilities: string[] }[] }
  const { models } = await client.json<Listed>('GET', '/api/tags')
  const able = models.find(({ capabilities }) => capabilities.includes(ability))
  if (able) return able.name
  const example = ability === 'speak' ? 'rhasspy/piper-voices:en_US-lessac-medium' : 'ggerganov/whisper.cpp:base'
  const message = `This server has no model that can ${ability}. Get one with: corral pull ${example}`
  throw new CommandFailure(EXIT.notFound, message)
}
