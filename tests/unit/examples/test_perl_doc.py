# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from text import perl_doc

POD = """=encoding utf8

=head1 NAME

perlsample - a B<bold> sample with C<< $a->{b} > 1 >> and L<text|perlfunc/open>

    code that is left out

Two lines
of E<lt>text E<gt> F<of I<one>> paragraph.X<index>

=over 4

=item * A point

=item 2.

=back

=begin html

Not this.

=end html

=cut
"""


def test_paragraphs_without_code_and_formatting():
    assert perl_doc.parse_pod(POD) == [
        "NAME",
        "perlsample - a bold sample with $a->{b} > 1 and text",
        "Two lines of <text > of one paragraph.",
        "A point",
    ]
