import type { PlanReply } from '../core/contracts/native-records.ts'
import { formatBytes, formatMemory } from '../core/system/bytes.ts'
import { printable } from './output.ts'
import { formatPairs, formatTable } from './table.ts'

/** What a pull would fetch and why, for people. */
export function formatPlan(plan: PlanReply, reference: string): string {
  const { label, format, repository, files, size, reason, choices, memory, disk, warnings, present } = plan
  const sections = [
    `${plan.model}\n${formatPairs([
      ['variant', label],
      ['chosen', reason],
      ['format', format],
      ['from', `${repository.address} (${repository.hub})`],
      ['revision', repository.revision],
      ['disk', need(disk, 'free', formatBytes)],
      ['memory', need(memory, 'available', formatMemory)]
    ])}`,
    `Files\n${indent(
      formatTable(
        [{ title: 'SIZE', align: 'right' }, { title: 'ROLE' }, { title: 'FILE' }],
        [
          ...files.map(file => [file.size === undefined ? 'unknown' : formatBytes(file.size), file.role, file.path]),
          ...(files.length > 1 ? [[formatBytes(size), '', 'in all']] : [])
        ]
      )
    )}`
  ]
  const others = choices.filter(choice => choice.label !== label)
  if (others.length > 0) {
    sections.push(
      `Other choices\n${indent(
        formatTable(
          [{ title: 'SIZE', align: 'right' }, { title: 'VARIANT' }],
          others.map(choice => [formatBytes(choice.size), choice.label])
        )
      )}`
    )
  }
  if (warnings.length > 0) sections.push(`Warnings\n${indent(warnings.join('\n'))}`)
  sections.push(
    present
      ? 'It is here already: nothing would be downloaded.'
      : `Nothing was downloaded. Get it with: corral pull ${reference}`
  )
  return printable(sections.join('\n\n'))
}

function need(
  { required, available, fits }: PlanReply['disk'],
  what: string,
  format: (bytes: number) => string
): string {
  return `${format(required)} needed, ${format(available)} ${what}${fits ? '' : ': not enough'}`
}

function indent(text: string): string {
  return text.replace(/^/gm, '  ')
}
