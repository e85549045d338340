import { useEffect, useState } from 'preact/hooks'
import type { ModelPreview } from '../../../../core/contracts/native-records.ts'
import { fill, texts } from '../texts/texts.ts'
import { formatDuration, formatNumber, formatSize } from './formats.ts'
import { Button } from './forms.tsx'
import { Fault } from './layout.tsx'
import { poolName } from './memory-pools.tsx'
import { useReply } from './view-hooks.ts'

const TYPES = ['f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl']

interface Rule {
  /** llama.cpp's name. */
  flag?: string
  step?: number | 'any'
  min?: number
  max?: number
  choices?: readonly string[]
}

const whole = (flag: string, min: number, max = 2 ** 31 - 1): Rule => ({ flag, step: 1, min, max })
const RULES = {
  num_ctx: whole('--ctx-size', 1),
  num_parallel: whole('--parallel', 1, 256),
  n_gpu_layers: whole('--n-gpu-layers', -1),
  cache_type_k: { flag: '--cache-type-k', choices: TYPES },
  cache_type_v: { flag: '--cache-type-v', choices: TYPES },
  temperature: { flag: '--temp', step: 'any', min: 0, max: 1e6 },
  top_p: { flag: '--top-p', step: 'any', min: 0, max: 1 },
  top_k: whole('--top-k', -1),
  max_tokens: whole('--predict', -2),
  seed: whole('--seed', -1, Number.MAX_SAFE_INTEGER),
  keep_alive: {},
  pin: { choices: ['true', 'false'] }
} satisfies Record<string, Rule>

export type SettingName = keyof typeof RULES

/** Settings of an engine, about which other servers decide themselves. */
const OF_ENGINES: readonly SettingName[] = [
  ...(['num_ctx', 'num_parallel', 'n_gpu_layers', 'cache_type_k', 'cache_type_v', 'keep_alive', 'pin'] as const)
]

/** Reads the fields of options. Empty ones are not set. */
export function optionsIn(names: readonly SettingName[], text: (name: string) => string): Record<string, unknown> {
  const set = names.filter(name => text(name) !== '' && name !== 'keep_alive' && name !== 'pin')
  return Object.fromEntries(set.map(name => [name, 'choices' in RULES[name] ? text(name) : Number(text(name))]))
}

/** Splits options into options with a field here and other options. */
export function splitOptions(names: readonly SettingName[], options: Readonly<Record<string, unknown>>) {
  const hasField = ([name, value]: [string, unknown]) => {
    const rule: Rule | undefined = names.includes(name as SettingName) ? RULES[name as SettingName] : undefined
    return rule?.choices ? rule.choices.includes(String(value)) : rule !== undefined && typeof value === 'number'
  }
  const entries = Object.entries(options)
  return [entries.filter(hasField), entries.filter(entry => !hasField(entry))].map(Object.fromEntries) as [
    Record<string, unknown>,
    Record<string, unknown>
  ]
}

/** The setting that a refusal is about, if it has a field. */
export const settingIn = (message: string, names: readonly SettingName[]) =>
  names.find(name => new RegExp(`\\b${name}\\b`).test(message))

/** Fields that explain settings: what each does, the value in force with its origin, and the memory they take. */
export function SettingFields(props: {
  model: string
  names: readonly SettingName[]
  /** The values that these fields have in the place they are saved to. */
  own: Readonly<Record<string, unknown>>
  origin: 'settings' | 'chat'
  /** The server's refusal of the values. */
  refusal?: string | undefined
}) {
  const { model, names, own, origin, refusal = '' } = props
  const [given, setGiven] = useState(() =>
    Object.fromEntries(names.map((name): [string, string] => [name, String(own[name] ?? '')]))
  )
  const settled = useSettled(given)
  const body = {
    model,
    options: optionsIn(names, name => settled[name] ?? ''),
    ...(settled.keep_alive && { keep_alive: settled.keep_alive })
  }
  const { reply, fault } = useReply<ModelPreview>(model && 'api/models/preview', body)
  const isElsewhere = reply !== undefined && !reply.load
  /** The values that the server refused. */
  const [refusedAt, setRefusedAt] = useState({})
  useEffect(() => setRefusedAt(given), [refusal])
  const refused = fault?.message ?? (refusedAt === given ? refusal : '')
  const wrong = settingIn(refused, names)
  const t = texts.value
  return (
    <>
      {isElsewhere && <p class="quiet">{t.remoteSettings}</p>}
      <div class="settings">
        {names.map(name =>
          isElsewhere && OF_ENGINES.includes(name) ? (
            <input key={name} type="hidden" name={name} value={given[name]!} />
          ) : (
            <SettingField
              key={name}
              name={name}
              given={given[name]!}
              onInput={text => setGiven({ ...given, [name]: text })}
              origin={origin}
              reply={reply}
              fault={wrong === name ? refused : limitText(name, settled[name]!, reply)}
            />
          )
        )}
      </div>
      {!fault && reply?.load && names.includes('num_ctx') && <MemoryNeed reply={reply} />}
    </>
  )
}

/** Says that a number is larger than the model or the server allows. */
function limitText(name: SettingName, given: string, reply: ModelPreview | undefined): string | undefined {
  const limit = reply?.limited?.[name as 'num_ctx']
  // The reply may be about an earlier value.
  return limit && Number(given) > limit ? fill(texts.value.limitedTo, { value: formatNumber(limit) }) : undefined
}

function SettingField(props: {
  name: SettingName
  given: string
  onInput: (text: string) => void
  origin: 'settings' | 'chat'
  reply: ModelPreview | undefined
  fault: string | undefined
}) {
  const { name, given, onInput, origin, reply, fault } = props
  const t = texts.value
  const { label, help } = t.settingTexts[name]
  const { flag, choices, ...limits }: Rule = RULES[name]
  const layer = reply?.options[name]?.find(({ from }) => from !== origin)
  const value = layer && valueText(name, layer.value)
  const source = layer && t.origins[layer.from]
  const common = {
    id: `set-${name}`,
    class: 'field',
    name,
    'aria-describedby': `about-${name}`,
    'aria-invalid': fault !== undefined
  }
  const change = (event: { currentTarget: { value: string } }) => onInput(event.currentTarget.value)
  return (
    <div class="setting">
      <label for={`set-${name}`}>
        <span>
          {label} <small lang="en">{[name, flag].filter(Boolean).join(' · ')}</small>
        </span>
        {choices ? (
          <select {...common} value={given} onInput={change}>
            <option value="">{value ?? texts.value.serverDefault}</option>
            {choices.map(choice => (
              <option key={choice} value={choice}>
                {name === 'pin' ? valueText(name, choice === 'true') : choice}
              </option>
            ))}
          </select>
        ) : (
          <input
            {...common}
            {...(limits.step === undefined ? { type: 'text' as const } : { type: 'number' as const, ...limits })}
            placeholder={value ?? texts.value.serverDefault}
            value={given}
            onInput={change}
          />
        )}
      </label>
      <div id={`about-${name}`} class="quiet">
        <p>{help}</p>
        {layer && (
          <p class="row">
            {given === '' ? (
              <span>
                <strong>{value}</strong> · {source}
                {name === 'num_ctx' && reply?.grows && ` · ${t.grows}`}
              </span>
            ) : (
              <>
                <strong>{t.origins[origin]}</strong>
                <Button onClick={() => onInput('')} text={fill(t.resetTo, { value: `${value} (${source})` })} />
              </>
            )}
          </p>
        )}
      </div>
      <Fault text={fault} isAnnounced />
    </div>
  )
}

function valueText(name: SettingName, value: unknown): string {
  const t = texts.value
  if (typeof value === 'boolean') return value ? texts.value.yes : texts.value.no
  if (typeof value !== 'number') return String(value)
  const special = { n_gpu_layers: t.automatic, max_tokens: t.unlimited, seed: t.randomValue, keep_alive: t.neverEnds }
  if (value < 0 && Object.hasOwn(special, name)) return special[name as 'seed']
  return name === 'keep_alive' ? formatDuration(value * 1000) : formatNumber(value, 3)
}

/** What the model would take, and the difference to the saved settings. */
function MemoryNeed({ reply: { size, memory = {}, fits } }: { reply: ModelPreview }) {
  const t = texts.value
  const [before] = useState(size)
  if (size === undefined || !fits) return <p class="quiet">{t.memoryUnknown}</p>
  const change = size - (before ?? size)
  const pools = Object.entries(memory).map(([pool, bytes]) => `${poolName(pool)} ${formatSize(bytes)}`)
  const [text, kind] = {
    now: [t.fitsNow, 'is-good'],
    alone: [t.fitsAlone, 'is-accent'],
    no: [t.fitsNot, 'is-error']
  }[fits] as [string, string]
  return (
    <output class="row memory-need">
      {t.memoryNeeded}: <strong>{formatSize(size)}</strong>
      {pools.length > 1 && <span>({pools.join(', ')})</span>}
      {change !== 0 && (
        <span>{fill(change > 0 ? t.memoryMore : t.memoryLess, { size: formatSize(Math.abs(change)) })}</span>
      )}
      <span class={`chip ${kind}`}>{text}</span>
    </output>
  )
}

/** The last value that stayed the same for a moment. */
function useSettled<Value>(value: Value): Value {
  const [settled, setSettled] = useState(value)
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), 300)
    return () => clearTimeout(timer)
  }, [JSON.stringify(value)])
  return settled
}
